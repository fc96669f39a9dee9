from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edged.artifacts.conform import conform, parameter_names, read_model
from edged.artifacts.graphs import opset_of, shape_of
from edged.engines import ort
from edged.errors import BundleError
from tests.artifacts.models import chain, model

if TYPE_CHECKING:
    from pathlib import Path

X = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)


def run(candidate: onnx.ModelProto, x: np.ndarray = X) -> np.ndarray:
    return np.asarray(ort.session(candidate.SerializeToString()).run(None, {"input": x})[0])


@pytest.mark.parametrize(("opset", "ir_version"), [(11, 6), (13, 7), (15, 8), (18, 8), (20, 9), (23, 11)])
def test_any_usual_version_is_brought_to_ours(opset: int, ir_version: int) -> None:
    conformed = conform(chain(opset=opset, ir_version=ir_version))
    assert (opset_of(conformed), conformed.ir_version) == (17, 8)
    np.testing.assert_allclose(run(conformed), run(conform(chain())), rtol=1e-6)


def test_axes_that_moved_to_an_input_are_moved_back() -> None:
    axes = numpy_helper.from_array(np.array([1], np.int64), "axes")
    weight = numpy_helper.from_array(np.ones((4, 2), np.float32), "w")
    nodes = [
        helper.make_node("ReduceMean", ["input", "axes"], ["mean"], keepdims=1),
        helper.make_node("Sub", ["input", "mean"], ["centred"]),
        helper.make_node("MatMul", ["centred", "w"], ["output"]),
    ]
    conformed = conform(model(nodes, [axes, weight], opset=18))
    np.testing.assert_allclose(run(conformed), (X - X.mean(1, keepdims=True)) @ np.ones((4, 2)), atol=1e-5)


def test_a_fixed_batch_is_freed() -> None:
    conformed = conform(chain(batch=1))
    assert shape_of(conformed.graph.input[0]) == ["batch", 4]
    assert shape_of(conformed.graph.output[0]) == ["batch", 2]
    assert run(conformed).shape == (3, 2)


def test_a_batch_fixed_inside_is_refused() -> None:
    shape = numpy_helper.from_array(np.array([1, 4], np.int64), "shape")
    weight = numpy_helper.from_array(np.ones((4, 2), np.float32), "w")
    nodes = [
        helper.make_node("Reshape", ["input", "shape"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["output"]),
    ]
    with pytest.raises(BundleError, match=r"input: the batch size is fixed inside.*dynamic batch axis"):
        conform(model(nodes, [shape, weight], batch=1))


def test_weights_listed_as_inputs_are_weights() -> None:
    old = chain(opset=11, ir_version=3)
    for tensor in old.graph.initializer:
        old.graph.input.append(helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.dims))
    assert [value.name for value in conform(old).graph.input] == ["input"]


def test_nodes_get_names_and_the_original_stays_as_it_was() -> None:
    original = chain(opset=13)
    before = original.SerializeToString()
    assert all(node.name for node in conform(read_model(original)).graph.node)
    assert original.SerializeToString() == before


def test_two_outputs_are_refused() -> None:
    two = chain()
    two.graph.output.append(helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["n", 4]))
    with pytest.raises(BundleError, match="exactly one output, it has: output, hidden"):
        conform(two)


def test_other_types_and_free_sizes_are_refused() -> None:
    double = chain()
    double.graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    with pytest.raises(BundleError, match="input: the model's input must be float32"):
        conform(double)
    free = chain()
    free.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "width"
    with pytest.raises(BundleError, match="sizes that vary"):
        conform(free)


def test_an_output_that_is_read_again_still_ends_the_graph() -> None:
    weight = numpy_helper.from_array(np.ones((4, 2), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["input", "w"], ["output"]),
        helper.make_node("Relu", ["output"], ["unused"]),
    ]
    assert conform(model(nodes, [weight])).graph.node[-1].op_type == "Identity"


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"nothing\.onnx: cannot be read: No such file"):
        read_model(tmp_path / "nothing.onnx")
    (tmp_path / "noise.onnx").write_bytes(bytes(range(256)) * 9)
    with pytest.raises(BundleError, match="is no ONNX model"):
        read_model(tmp_path / "noise.onnx")


def test_parameters_are_weights_that_are_read() -> None:
    parameters = [
        numpy_helper.from_array(np.ones((4, 2), np.float32), "w"),
        numpy_helper.from_array(np.array(3.0, np.float32), "temperature"),
        numpy_helper.from_array(np.ones(3, np.float32), "forgotten"),
        numpy_helper.from_array(np.array([0], np.int64), "axes"),
    ]
    nodes = [
        helper.make_node("MatMul", ["input", "w"], ["product"]),
        helper.make_node("Mul", ["product", "temperature"], ["output"]),
    ]
    graph = model(nodes, parameters).graph
    assert parameter_names(graph) == ["w"]
    assert parameter_names(graph, scalars=True) == ["w", "temperature"]
