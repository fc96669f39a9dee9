from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.graph.edit import opset_of, shape_of
from edged.bundles.source.normalise import conform, parameter_names, read_model
from edged.engines.runtime import ort
from edged.errors import BundleError
from tests.bundles.models import chain, model

X = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)


def run(candidate: onnx.ModelProto, x: np.ndarray = X) -> np.ndarray:
    return np.asarray(ort.session(candidate.SerializeToString()).run(None, {"input": x})[0])


@pytest.mark.parametrize(
    ("opset", "ir_version", "kept"),
    [(11, 6, (13, 8)), (13, 7, (13, 8)), (15, 8, (15, 8)), (20, 9, (20, 9)), (23, 11, (21, 10))],
)
def test_any_usual_version_is_kept_or_brought_to_the_nearest(
    opset: int, ir_version: int, kept: tuple[int, int]
) -> None:
    conformed = conform(chain(opset=opset, ir_version=ir_version))
    assert (opset_of(conformed), conformed.ir_version) == kept
    np.testing.assert_allclose(run(conformed), run(conform(chain())), rtol=1e-6)


def test_axes_may_be_an_input() -> None:
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
    truth = chain()
    truth.graph.input[0].type.tensor_type.elem_type = TensorProto.BOOL
    with pytest.raises(BundleError, match="input: the model's input must be float32"):
        conform(truth)
    free = chain()
    free.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "width"
    with pytest.raises(BundleError, match=r"^the length of axis 1 of 'input' \(width\) is open"):
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
    (tmp_path / "net.pt").write_bytes(b"PK" + bytes(range(256)))
    with pytest.raises(BundleError, match=r"net\.pt: is no ONNX model \(export it with torch\.onnx\.export"):
        read_model(tmp_path / "net.pt")


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


@pytest.mark.parametrize(("parts", "axis"), [(2, 1), (2, -1), (4, 1)])
def test_a_split_may_name_the_number_of_its_parts(parts: int, axis: int) -> None:
    weight = numpy_helper.from_array(np.ones((4 // parts, 2), np.float32), "w")
    names = [f"part{i}" for i in range(parts)]
    nodes = [
        helper.make_node("Split", ["input"], names, axis=axis, num_outputs=parts),
        helper.make_node("MatMul", ["part0", "w"], ["output"]),
    ]
    conformed = conform(model(nodes, [weight], opset=20))
    length = 4 // parts
    np.testing.assert_allclose(run(conformed), X[:, :length] @ np.ones((length, 2)), rtol=1e-5)


def test_what_a_reduction_no_longer_has_is_left_out() -> None:
    axes = numpy_helper.from_array(np.array([1], np.int64), "axes")
    weight = numpy_helper.from_array(np.ones((1, 2), np.float32), "w")
    nodes = [
        helper.make_node("ReduceMean", ["input", "axes"], ["mean"], keepdims=1, noop_with_empty_axes=0),
        helper.make_node("MatMul", ["mean", "w"], ["output"]),
    ]
    np.testing.assert_allclose(
        run(conform(model(nodes, [axes, weight], opset=20))),
        X.mean(1, keepdims=True) @ np.ones((1, 2)),
        atol=1e-6,
    )


def test_shapes_that_inference_leaves_open_are_measured() -> None:
    weight = numpy_helper.from_array(np.ones((4, 2), np.float32), "w")
    nodes = [
        helper.make_node("Shape", ["input"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "order"], ["turned"]),
        helper.make_node("Reshape", ["input", "turned"], ["aside"]),
        helper.make_node("Reshape", ["aside", "sizes"], ["back"]),
        helper.make_node("MatMul", ["back", "w"], ["output"]),
    ]
    order = numpy_helper.from_array(np.array([1, 0], np.int64), "order")
    values = {item.name: item for item in conform(model(nodes, [order, weight])).graph.value_info}
    assert shape_of(values["back"]) == ["batch", 4]
    assert shape_of(values["aside"])[0] == 4


def test_an_export_in_training_mode_becomes_one_for_inference() -> None:
    names = ["scale", "bias", "mean", "variance"]
    drawn = np.random.default_rng(0).uniform(0.5, 1.5, (4, 4)).astype(np.float32)
    numbers = dict(zip(names, drawn, strict=True))
    weights = [numpy_helper.from_array(value, name) for name, value in numbers.items()]
    weights.append(numpy_helper.from_array(np.ones((4, 2), np.float32), "w"))
    nodes = [
        helper.make_node("BatchNormalization", ["input", *names], ["normal", "m", "v"], training_mode=1),
        helper.make_node("MatMul", ["normal", "w"], ["output"]),
    ]
    normal = (X - numbers["mean"]) / np.sqrt(numbers["variance"] + 1e-5) * numbers["scale"] + numbers["bias"]
    np.testing.assert_allclose(run(conform(model(nodes, weights))), normal @ np.ones((4, 2)), rtol=1e-5)
    nodes.insert(1, helper.make_node("Identity", ["m"], ["aside"]))
    with pytest.raises(BundleError, match=r"BatchNormalization .*its new statistics are read"):
        conform(model(nodes, weights))
