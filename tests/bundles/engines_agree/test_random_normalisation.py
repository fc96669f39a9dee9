"""Random small networks with normalisations and rewritten activations: the same gradients on both engines."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from tests.bundles.engines_agree.gradients import assert_equal, both_gradients
from tests.bundles.engines_agree.test_random import Network

KINDS = ["InstanceNormalization", "groups", "LayerNormalization", "BatchNormalization", "none"]
ACTIVATIONS = ["Elu", "Selu", "Celu", "PRelu", "HardSwish", "HardSigmoid", "Softplus", "Softsign", "Tanh"]
INPUTS = 4


class Tables(Network):
    """Dense layers whose numbers are seen as tables of channels and positions in between."""

    def block(self, channels: int, length: int, kind: str, operator: str) -> None:
        self.dense(channels * length, gemm=True)
        table = self.add("Reshape", self.current, self._numbers([-1, channels, length], np.int64))
        table = self._normalised(table, channels, length, kind)
        slope = [self.weight(channels, 1)] if operator == "PRelu" else []
        self.current = self.add("Flatten", self.add(operator, table, *slope))

    def _normalised(self, table: str, channels: int, length: int, kind: str) -> str:
        if kind == "none":
            return table
        if kind == "groups":
            whole = self.add("Reshape", table, self._numbers([-1, 1, channels * length], np.int64))
            normal = self._normalised(whole, 1, channels * length, "InstanceNormalization")
            return self.add("Reshape", normal, self._numbers([-1, channels, length], np.int64))
        width = length if kind == "LayerNormalization" else channels
        affine = [self.weight(width), self.weight(width)]
        if kind == "BatchNormalization":
            affine = [self._frozen(width) for _ in range(4)]
        return self.add(kind, table, *affine, epsilon=0.01)  # as in Network.activate

    def _frozen(self, size: int) -> str:
        return self._numbers(self.rng.uniform(0.5, 1.5, size), np.float32, "frozen")

    def _numbers(self, values: object, dtype: type, prefix: str = "sizes") -> str:
        name = f"{prefix}{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(values, dtype), name))
        return name


BLOCKS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(2, 5), st.sampled_from(KINDS), st.sampled_from(ACTIVATIONS)),
    min_size=1,
    max_size=3,
)


@given(
    blocks=BLOCKS,
    loss=st.sampled_from(["cross_entropy", "mse"]),
    rows=st.integers(1, 9),
    seed=st.integers(0, 999),
)
@settings(max_examples=30, deadline=None)
def test_random_normalised_networks_have_the_same_gradients(
    blocks: list[tuple[int, int, str, str]], loss: str, rows: int, seed: int
) -> None:
    network = Tables(seed, INPUTS)
    for block in blocks:
        network.block(*block)
    network.dense(3, gemm=True)
    frozen = any(tensor.name.startswith("frozen") for tensor in network.weights)
    with tempfile.TemporaryDirectory() as folder:
        given, freeze = network.model(INPUTS), ["frozen*"] if frozen else []
        found = both_gradients(given, Path(folder), loss=loss, rows=rows, seed=seed, freeze=freeze)
        # A deviation of two or three nearly equal numbers has few digits in float32; the judge has them all.
        assert_equal(*found, rtol=2e-3)
