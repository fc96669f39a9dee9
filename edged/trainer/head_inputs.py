"""Inputs of a network's last layer, read off its outputs: with ones in its weights it answers its inputs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.model_files import file_name
from edged.engines.inference import InferenceModel
from edged.engines.model_parameters import base_of
from edged.errors import RefusedError
from edged.trainer.steps import InterruptedRunError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.federated.settings import LastLayer
    from edged.domain.protocols import Throttle
    from edged.storage.models.bundles import Bundle

    Floats = NDArray[np.float32]
    Weights = Mapping[str, Floats]

AT_ONCE = 1024
CLOSE = 1e-4  # of the largest output: float32 adds up in another order


class HeadInputs:
    """Reads what enters `layer` in the network of a bundle; the weights below it are `values`.

    Any network whose output is that layer's will do, on any onnxruntime. Raises RefusedError when it is not,
    or there is no such layer; UnavailableError when the bundle does not say where its parameters lie.
    """

    def __init__(self, bundle: Bundle, values: Weights, layer: LastLayer) -> None:
        self._base, self._layer = base_of(bundle), layer
        self._values = {**self._base.parameters(), **values}
        for name in (layer.weight, layer.bias):
            if name not in self._values:
                raise RefusedError(f"the network has no parameter {name}", where="statistics")
        shape, bias = self._values[layer.weight].shape, self._values[layer.bias].shape
        if len(shape) != 2 or bias != (layer.outputs,) or layer.outputs not in shape:
            found = f"{layer.weight} {shape} and {layer.bias} {bias}"
            raise RefusedError(f"{found} are no layer of {layer.outputs} outputs", where="statistics")
        self.outputs_first = shape[0] == layer.outputs
        self.width = shape[1] if self.outputs_first else shape[0]

    def check(self, x: Floats) -> None:
        """Refuse a network whose output is not what the layer says; `x` `(n, d)` are a few rows."""
        bias = np.arange(1, self._layer.outputs + 1, dtype=np.float32)
        answered = self._answers(np.zeros((self._layer.outputs, self.width), np.float32), bias, x)
        if answered.shape[1:] != bias.shape or not (answered == bias).all():
            raise RefusedError(
                f"its output is not that of the layer {self._layer.weight}, so no layer can be solved for",
                where="statistics",
                remedy="take a network that ends with a linear layer, or name it in `statistics`",
            )

    def read(self, x: Floats, throttle: Throttle) -> Floats:
        """The inputs `(n, width)` of rows `(n, d)`; InterruptedRunError when it is told to stop."""
        self.check(x[:2])
        found, count = np.empty((len(x), self.width), np.float32), self._layer.outputs
        for at in range(0, self.width, count):
            began, some = time.monotonic(), min(count, self.width - at)
            ones = np.eye(count, self.width, k=at, dtype=np.float32)
            found[:, at : at + some] = self._answers(ones, np.zeros(count, np.float32), x)[:, :some]
            throttle.throttle(time.monotonic() - began)
            if throttle.stopping:
                raise InterruptedRunError("asked to stop", where=f"input {at} of {self.width} of a layer")
        self._agrees(found[:AT_ONCE], x[:AT_ONCE])
        return found

    def _agrees(self, inputs: Floats, x: Floats) -> None:
        """The layer's own weights must make of its inputs what the network answers."""
        weight, bias = self._values[self._layer.weight], self._values[self._layer.bias]
        weight = weight if self.outputs_first else weight.T
        expected, told = inputs @ weight.T + bias, self._answers(weight, bias, x)
        if np.abs(expected - told).max() > CLOSE * max(1.0, float(np.abs(told).max())):
            what = f"the network does not answer what the layer {self._layer.weight} makes of its inputs"
            raise RefusedError(what, where="statistics")

    def _answers(self, weight: Floats, bias: Floats, x: Floats) -> Floats:
        laid = weight if self.outputs_first else np.ascontiguousarray(weight.T)
        changed = {**self._values, self._layer.weight: laid, self._layer.bias: bias}
        with tempfile.TemporaryDirectory(prefix="edged-head-") as folder:
            path = Path(folder) / file_name(self._base.suffix)
            path.write_bytes(self._base.with_parameters(changed))
            model = InferenceModel(path)
            parts = [model.predict(x[at : at + AT_ONCE]) for at in range(0, len(x), AT_ONCE)]
        return np.concatenate(parts)
