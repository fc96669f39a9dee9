"""Serving: one inference model on the CPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.bundle_contents import EXPERTS
from edged.engines.runtime import ort
from edged.engines.runtime.ort import CPU, check
from edged.errors import ModelError

Floats = NDArray[np.float32]


class InferenceModel:
    """A loaded model file with one float32 input and one output that counts.

    Needs no training package. Full graph optimisation costs about 0.1 ms more at load than none and makes
    single predictions about a tenth faster. A row has `input_width` features and `output_width` outputs.

    Parameters
    ----------
    path
        The ONNX file.
    breathe
        Called between the steps of loading and warming up, each of which holds the interpreter's lock: a
        pause in it lets another thread answer in between.
    providers
        Execution providers by onnxruntime's names, the preferred one first.

    Raises
    ------
    ConfigError
        When this onnxruntime has no such provider.
    UnavailableError
        When it has, and the machine has not what it needs.
    ModelError
        When the file cannot be loaded or has no such input and output.
    """

    def __init__(
        self,
        path: Path,
        *,
        breathe: Callable[[], None] = lambda: None,
        providers: Sequence[str] = CPU,
    ) -> None:
        self.path = path
        self._breathe = breathe
        check(providers, "serving.provider")
        try:
            self._session = ort.session_in_steps(str(path), breathe, providers)
        except ort.ERRORS as problem:
            what = f"the model cannot be loaded: {ort.one_line(problem)}"
            raise ModelError(what, where=str(path), remedy="take another version of it") from problem
        self._inspect(self._session.inputs_meta, self._session.outputs_meta)

    def _inspect(self, inputs: list[Any], outputs: list[Any]) -> None:
        if len(inputs) != 1 or inputs[0].type != "tensor(float)" or outputs[0].type != "tensor(float)":
            raise ModelError(
                "the model must have one float32 input and a float32 output", where=str(self.path)
            )
        self._input, self._outputs = inputs[0].name, [outputs[0].name]
        self._row, row = self._fixed(inputs[0].shape), self._fixed(outputs[0].shape)
        self.input_width, self.output_width = math.prod(self._row), math.prod(row)
        mixed = [output for output in outputs[1:] if output.name == EXPERTS]
        self.experts = math.prod(self._fixed(mixed[0].shape)) // self.output_width if mixed else 0

    def _fixed(self, shape: list[Any]) -> tuple[int, ...]:
        row = tuple(shape[1:])
        if not shape or isinstance(shape[0], int) or not all(isinstance(dim, int) for dim in row):
            raise ModelError(
                f"shape {shape} is not (batch, sizes...)",
                where=str(self.path),
                remedy="the batch must be dynamic, all other sizes fixed",
            )
        return row

    def predict(self, x: Floats) -> Floats:
        """Raw outputs `(n, k)` float32 for rows `(n, d)` float32.

        Raises ModelError when the rows do not fit the model, or it fails on them.
        """
        out = self._run(self._outputs, x)
        return out if out.ndim == 2 else out.reshape(len(x), self.output_width)

    def predict_experts(self, x: Floats) -> Floats:
        """What each expert says of rows `(n, d)` float32, `(n, experts, k)` float32.

        Raises ModelError as `predict`, and when the model has no experts.
        """
        if not self.experts:
            raise ModelError("the model has no experts", where=str(self.path))
        return self._run([EXPERTS], x, ort.ONLY_FETCHED).reshape(len(x), self.experts, self.output_width)

    def _run(self, outputs: list[str], x: Floats, how: Any = None) -> Floats:
        if x.ndim != 2 or x.shape[1] != self.input_width or x.dtype != np.float32:
            got = f"{x.dtype}{list(x.shape)}"
            raise ModelError(
                f"the model takes float32 rows of {self.input_width}, got {got}", where=str(self.path)
            )
        rows = x if len(self._row) == 1 else x.reshape(-1, *self._row)
        try:
            out: Floats = self._session.run(outputs, {self._input: rows}, how)[0]
        except ort.ERRORS as problem:
            raise ModelError(f"prediction failed: {ort.one_line(problem)}", where=str(self.path)) from problem
        return out

    def warm_up(self, rows: Sequence[int] = (1, 32)) -> None:
        """Predict batches of zeros of these sizes, so that the first real one is not the slow one."""
        for n in rows:
            self._breathe()
            self.predict(np.zeros((n, self.input_width), np.float32))


class InferenceReader:
    """Loads models as the section `serving` says; sleeps `pause` seconds between pieces of work.

    Loading a model holds the interpreter's lock several times for about half a millisecond. A daemon that
    sleeps in between lets its serving thread answer, so that no prediction waits for all of it.
    """

    def __init__(self, *, providers: Sequence[str] = CPU, pause: float = 0.0, warm: bool = False) -> None:
        self._providers, self._pause, self._warm = providers, pause, warm

    def load(self, path: Path) -> InferenceModel:
        """Load a model; with `warm` it has predicted once when it is returned."""
        model = InferenceModel(path, breathe=self.breathe, providers=self._providers)
        if self._warm:
            model.warm_up()
        return model

    def breathe(self) -> None:
        """Sleep for the pause, where there is one."""
        if self._pause:
            time.sleep(self._pause)
