"""Random small dense networks: both engines must come to the same gradients."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.bundles.engines_agree.gradients import assert_equal, both_gradients

ACTIVATIONS = ["Relu", "Tanh", "Sigmoid", "LeakyRelu", "Softmax", "LogSoftmax", "Identity", "Abs"]
SHAPES = ["plain", "residual", "joined", "normalised", "gated"]


class Network:
    """Layers one after the other, each with its own form."""

    def __init__(self, seed: int, width: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.current, self.width = "x", width

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        value = self.rng.standard_normal(shape) / np.sqrt(shape[0])
        self.weights.append(numpy_helper.from_array(value.astype(np.float32), name))
        return name

    def add(self, operator: str, *inputs: str, **attributes: float) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def dense(self, width: int, *, gemm: bool) -> None:
        weight, bias = self.weight(self.width, width), self.weight(width)
        if gemm:
            self.current = self.add("Gemm", self.current, weight, bias)
        else:
            self.current = self.add("Add", self.add("MatMul", self.current, weight), bias)
        self.width = width

    def activate(self, operator: str, shape: str) -> None:
        before = self.current
        after = self.add(operator, before, **({"axis": 1} if "oftmax" in operator else {}))
        if shape == "residual":
            after = self.add("Add", before, after)
        elif shape == "gated":
            after = self.add("Mul", before, after)
        elif shape == "normalised":
            affine = [self.weight(self.width), self.weight(self.width)]
            # Of two normalised numbers the gradient is hardly more than epsilon's: float32 would lose it.
            after = self.add("LayerNormalization", after, *affine, epsilon=0.01)
        elif shape == "joined":
            after, self.width = self.add("Concat", before, after, axis=1), 2 * self.width
        self.current = after

    def model(self, inputs: int) -> onnx.ModelProto:
        take = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", inputs])
        give = helper.make_tensor_value_info(self.current, TensorProto.FLOAT, ["batch", self.width])
        graph = helper.make_graph(self.nodes, "random", [take], [give], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


# Layers are at least 2 wide: the native engine refuses a LayerNormalization of one number.
LAYERS = st.lists(
    st.tuples(st.integers(2, 6), st.booleans(), st.sampled_from(ACTIVATIONS), st.sampled_from(SHAPES)),
    max_size=3,
)


@given(
    layers=LAYERS,
    inputs=st.integers(1, 6),
    outputs=st.integers(2, 4),
    loss=st.sampled_from(["cross_entropy", "mse", "l1", "bce_with_logits"]),
    # An odd number, so that the signs of l1 do not cancel where every ReLU is off.
    rows=st.sampled_from([1, 3, 5, 7, 9]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=40, deadline=None)
def test_random_dense_networks_have_the_same_gradients(
    layers: list[tuple[int, bool, str, str]], inputs: int, outputs: int, loss: str, rows: int, seed: int
) -> None:
    network = Network(seed, inputs)
    for width, gemm, operator, shape in layers:
        network.dense(width, gemm=gemm)
        network.activate(operator, shape)
    network.dense(outputs, gemm=True)
    with tempfile.TemporaryDirectory() as folder:
        native, portable = both_gradients(
            network.model(inputs), Path(folder), loss=loss, rows=rows, seed=seed
        )
    assert_equal(native, portable)
