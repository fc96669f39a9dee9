"""What enters a layer of a network: that tensor is made one more output of its ONNX file."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.federated.head_statistics import spread
from edged.domain.judging.outputs import log_likelihoods
from edged.engines.inference import InferenceModel
from edged.engines.model_parameters import onnx_base_of
from edged.engines.onnx.fields import readers_of, with_output
from edged.errors import RefusedError
from edged.storage.models.bundles import CLASSIFYING
from edged.trainer.steps import InterruptedRunError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.federated.settings import LastLayer
    from edged.domain.protocols import Throttle
    from edged.storage.models.bundles import Bundle

    Floats = NDArray[np.float32]
    Doubles = NDArray[np.float64]
    Weights = Mapping[str, Floats]

AT_ONCE = 1024
CLOSE = 1e-4  # of the largest output: float32 adds up in another order
LAYERS = ("Gemm", "MatMul")


class HeadInputs:
    """Reads what enters `layer` in the network of a bundle; the weights below it are `values`.

    The network's output is that layer's, in the units of its targets, or of a mixture the layer is that of
    its expert number `expert`. Raises RefusedError when there is no such layer; UnavailableError when the
    bundle does not say where its parameters lie.
    """

    def __init__(self, bundle: Bundle, values: Weights, layer: LastLayer, expert: int = 0) -> None:
        self._bundle, self._layer, self._expert = bundle, layer, expert
        base = onnx_base_of(bundle)
        known = {**base.parameters(), **values}
        for name in (layer.weight, layer.bias):
            if name not in known:
                raise RefusedError(f"the network has no parameter {name}", where="statistics")
        shape, bias = known[layer.weight].shape, known[layer.bias].shape
        if len(shape) != 2 or bias != (layer.outputs,) or layer.outputs not in shape:
            found = f"{layer.weight} {shape} and {layer.bias} {bias}"
            raise RefusedError(f"{found} are no layer of {layer.outputs} outputs", where="statistics")
        first = shape[0] == layer.outputs
        self.width = shape[1] if first else shape[0]
        if layer.units > self.width:
            raise RefusedError(
                f"{layer.weight} has {self.width} inputs, not {layer.units}", where="statistics"
            )
        # Weights that no network has by chance: what it answers with them must be what the layer makes.
        self._weight = np.random.default_rng(0).normal(size=(layer.outputs, self.width)).astype(np.float32)
        self._weight /= np.float32(np.sqrt(self.width))
        self._bias = np.arange(1, layer.outputs + 1, dtype=np.float32)
        self._values = known
        laid = self._weight if first else np.ascontiguousarray(self._weight.T)
        content = bytes(base.with_parameters({**known, layer.weight: laid, layer.bias: self._bias}))
        read = [inputs[0] for kind, inputs in readers_of(content, layer.weight) if kind in LAYERS]
        if len(read) != 1:
            raise self._refusal(f"{len(read)} layers have the weight {layer.weight}")
        self._tensor = read[0]
        with tempfile.TemporaryDirectory(prefix="edged-head-") as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(with_output(content, self._tensor))
            self._model = InferenceModel(path)

    def check(self) -> None:
        """Refuse a network whose output is not what the layer says."""
        rows = np.random.default_rng(1).normal(size=(2, self._bundle.input.width)).astype(np.float32)
        self._read(rows)

    def read(self, x: Floats, throttle: Throttle) -> Floats:
        """The inputs that count `(n, units)` of rows `(n, d)`; InterruptedRunError when asked to stop."""
        units = self._layer.units
        found, chosen = np.empty((len(x), units), np.float32), spread(self.width, units)
        for at in range(0, len(x), AT_ONCE):
            began = time.monotonic()
            found[at : at + AT_ONCE] = self._read(x[at : at + AT_ONCE])[:, chosen]
            throttle.throttle(time.monotonic() - began)
            if throttle.stopping:
                raise InterruptedRunError("asked to stop", where=f"row {at} of {len(x)} of a layer's inputs")
        return found

    def targets(self, y: Floats, x: Floats) -> Doubles:
        """Numbers `(n, outputs)` in the units of the network's targets, as the layer should answer them."""
        names, found = self._bundle.target_standardise, y.astype(np.float64)
        if self._bundle.change_of:
            found = found - x[:, list(self._bundle.change_of)]
        if names is None:
            return found
        mean, scale = (self._values[str(names[part])].astype(np.float64) for part in ("mean", "scale"))
        return np.asarray((found - mean) * scale)

    def _read(self, x: Floats) -> Floats:
        """All inputs `(n, width)`; the network must answer what the layer makes of them."""
        model = self._model
        inputs, answered = model.tensor(self._tensor, x), model.predict(x)
        if inputs.shape != (len(x), self.width):
            raise self._refusal(f"what enters the layer {self._layer.weight} is {inputs.shape[1:]} of a row")
        made = inputs @ self._weight.T + self._bias
        if model.experts:
            expected, found = log_likelihoods(made), model.predict_experts(x)[:, self._expert]
        else:
            expected, found = made, answered
            if answered.shape == made.shape and self._bundle.loss not in CLASSIFYING:
                found = self.targets(answered, x).astype(np.float32)
        usable = np.isfinite(inputs).all(axis=1) & np.isfinite(x).all(axis=1)
        apart = np.abs(expected - found)[usable] if expected.shape == found.shape else np.array([np.inf])
        if apart.max(initial=0.0) > CLOSE * max(1.0, float(np.abs(made[usable]).max(initial=0.0))):
            raise self._refusal(f"its output is not that of the layer {self._layer.weight}")
        return inputs

    @staticmethod
    def _refusal(what: str) -> RefusedError:
        remedy = "take a network that ends with a linear layer, or name it in `statistics`"
        return RefusedError(f"{what}, so no layer can be solved for", where="statistics", remedy=remedy)
