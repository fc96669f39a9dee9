"""Models as they come: any opset, with functions, with custom operators, with a loss in them already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.graph.edit import opset_of
from edged.bundles.graph.templates import mlp
from edged.bundles.source.normalise import conform
from edged.engines.runtime import ort
from edged.errors import BundleError, ConfigError
from tests.building import build
from tests.bundles.engines_agree.gradients import assert_equal, both_gradients
from tests.bundles.models import chain, model
from tests.installed import ENGINES, built_for_each, needs_native
from tests.zoo import ZOO

NEWEST = int(onnx.defs.onnx_opset_version())
X = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)


def run(candidate: onnx.ModelProto) -> np.ndarray:
    return np.asarray(ort.session(candidate.SerializeToString()).run(None, {"input": X})[0])


def weight(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.random.default_rng(0).standard_normal(shape).astype(np.float32), name)


# ---- versions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("opset", "nearest"), [(7, 13), (9, 13), (10, 13), (24, 21), (25, 21)])
def test_old_and_new_opsets_are_brought_to_the_nearest(opset: int, nearest: int) -> None:
    if opset > NEWEST:
        pytest.skip("this onnx does not have the opset")
    notes: list[str] = []
    made = conform(chain(opset=opset, ir_version=8), add_note=notes.append)
    assert opset_of(made) == nearest
    np.testing.assert_allclose(run(made), run(conform(chain())), rtol=1e-6)
    assert notes == [f"brought from opset {opset} to opset {nearest}"]


@pytest.mark.parametrize("opset", [6, 99])
def test_an_opset_that_cannot_be_converted_is_refused(opset: int) -> None:
    with pytest.raises(BundleError, match=rf"opset {opset}, this onnx .* converts 7 to .*opset_version=21"):
        conform(chain(opset=opset))


@pytest.mark.parametrize("name", ["cnn_average", "transformer", "lstm", "cnn_groupnorm"])
def test_networks_come_down_from_the_newest_opset(name: str) -> None:
    ours = ZOO[name].make(True)
    made = conform(onnx.version_converter.convert_version(ours, min(25, NEWEST)))
    row = [dim.dim_value for dim in ours.graph.input[0].type.tensor_type.shape.dim[1:]]
    x = np.random.default_rng(0).integers(0, 4, (3, *row)).astype(np.float32)
    expected, found = (
        ort.session(each.SerializeToString()).run(None, {ours.graph.input[0].name: x})[0]
        for each in (ours, made)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def padded(**attributes: Any) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Pad", ["input", "amounts", "", "axes"], ["wide"], name="pad", **attributes),
        helper.make_node("MatMul", ["wide", "w"], ["output"]),
    ]
    whole = {"amounts": [1, 2], "axes": [1]}
    held = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in whole.items()]
    return model(nodes, [*held, weight("w", 7, 2)], opset=19)


def test_a_pad_along_some_axes_is_one_along_all() -> None:
    w = numpy_helper.to_array(weight("w", 7, 2))
    np.testing.assert_allclose(run(conform(padded())), np.pad(X, ((0, 0), (1, 2))) @ w, rtol=1e-5)
    np.testing.assert_allclose(
        run(conform(padded(mode="wrap"))), np.pad(X, ((0, 0), (1, 2)), "wrap") @ w, rtol=1e-5
    )


def test_a_normalisation_by_the_root_mean_square(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["input", "w"], ["h"]),
        helper.make_node("RMSNormalization", ["h", "scale"], ["n"], epsilon=1e-3),
        helper.make_node("MatMul", ["n", "v"], ["output"]),
    ]
    given = model(nodes, [weight("w", 4, 4), weight("scale", 4), weight("v", 4, 2)], opset=23)
    w, scale, v = (numpy_helper.to_array(tensor) for tensor in given.graph.initializer)
    h = X @ w
    expected = h / np.sqrt((h**2).mean(1, keepdims=True) + 1e-3) * scale @ v
    np.testing.assert_allclose(
        run(conform(onnx.ModelProto.FromString(given.SerializeToString()))), expected, atol=1e-5
    )
    assert_equal(*both_gradients(given, tmp_path))


def test_an_operator_that_our_opset_does_not_have_is_named() -> None:
    given = chain("TensorScatter", opset=24)
    with pytest.raises(
        BundleError, match=r"node TensorScatter_1: operator TensorScatter of opset 24 has no form"
    ):
        conform(given)


def test_a_number_of_the_exporters_is_no_parameter(tmp_path: Path) -> None:
    """Such as the scale of an attention, read twice; a learned slope has a name of its module's."""
    nodes = [
        helper.make_node("MatMul", ["input", "w"], ["h"]),
        helper.make_node("Mul", ["h", "val_7"], ["scaled"]),
        helper.make_node("PRelu", ["scaled", "act.weight"], ["a"]),
        helper.make_node("MatMul", ["a", "val_9"], ["output"]),
    ]
    given = model(
        nodes, [weight("w", 4, 4), weight("val_7", 1), weight("act.weight", 1), weight("val_9", 4, 2)]
    )
    notes: list[str] = []
    bundle = build(given, tmp_path / "b", loss="mse", add_note=notes.append)
    assert (bundle.trainable, bundle.frozen) == (("w", "act.weight", "val_9"), ())
    assert notes[0] == "numbers of the exporter's, no parameters: val_7"


# ---- functions and custom operators ------------------------------------------------------------


def custom() -> onnx.ModelProto:
    made = chain("Twice")
    made.graph.node[1].domain = "my.ops"
    made.opset_import.append(helper.make_opsetid("my.ops", 1))
    return made


def twice() -> onnx.FunctionProto:
    add = helper.make_node("Add", ["x", "x"], ["y"])
    return helper.make_function("my.ops", "Twice", ["x"], ["y"], [add], [helper.make_opsetid("", 17)])


def library(path: Path) -> Path:
    held = onnx.ModelProto(ir_version=8)
    held.functions.append(twice())
    held.opset_import.append(helper.make_opsetid("", 17))
    path.write_bytes(held.SerializeToString())
    return path


def test_a_custom_operator_is_refused_by_name_unless_a_function_of_it_is_given(tmp_path: Path) -> None:
    with pytest.raises(
        BundleError, match=r"node Twice_1: operator my\.ops\.Twice is a custom .*--op-library"
    ):
        build(custom(), tmp_path / "b", loss="mse")
    notes: list[str] = []
    functions = library(tmp_path / "l.onnx")
    bundle = build(custom(), tmp_path / "b", loss="mse", library=functions, add_note=notes.append)
    assert notes == ["functions written out: my.ops.Twice"]
    assert tuple(built_for_each(custom(), tmp_path, loss="mse", library=functions)) == ENGINES
    plain = onnx.load(str(bundle.inference_model))
    weights = [numpy_helper.to_array(tensor) for tensor in chain().graph.initializer]
    np.testing.assert_allclose(run(plain), 2 * (X @ weights[0]) @ weights[1] + weights[2], rtol=1e-5)
    assert {node.domain for node in plain.graph.node} == {""}


def test_a_model_brings_its_functions_itself(tmp_path: Path) -> None:
    given = custom()
    given.functions.append(twice())
    assert_equal(*both_gradients(given, tmp_path))


def test_a_library_without_functions_is_refused(tmp_path: Path) -> None:
    onnx.save(mlp(4, 2), str(tmp_path / "l.onnx"))
    with pytest.raises(ConfigError, match="--op-library: the library has no functions"):
        build(custom(), tmp_path / "b", loss="mse", library=tmp_path / "l.onnx")
    (tmp_path / "ops.so").write_bytes(b"\x7fELF" + bytes(60))
    with pytest.raises(BundleError, match=r"ops\.so: is no ONNX model"):
        build(custom(), tmp_path / "b", loss="mse", library=tmp_path / "ops.so")


def test_an_operator_that_nobody_knows_is_named() -> None:
    with pytest.raises(BundleError, match="node Unheard_1: there is no operator Unheard in opset 17"):
        conform(chain("Unheard"))


# ---- what is finished already ------------------------------------------------------------------


def judged(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    made = chain()
    made.graph.input.append(helper.make_tensor_value_info("labels", TensorProto.INT64, ["n"]))
    made.graph.node.extend(nodes)
    del made.graph.output[:]
    made.graph.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    return made


LOSSES = {
    "one operator": [helper.make_node("SoftmaxCrossEntropyLoss", ["output", "labels"], ["loss"])],
    "two operators": [
        helper.make_node("LogSoftmax", ["output"], ["logs"]),
        helper.make_node("NegativeLogLikelihoodLoss", ["logs", "labels"], ["loss"]),
    ],
}


@pytest.mark.parametrize("form", LOSSES)
def test_a_loss_in_the_graph_is_recognised(form: str) -> None:
    with pytest.raises(
        BundleError, match=r"ends in a loss already: operator \w+ \(export the network up to 'output'"
    ):
        conform(judged(*LOSSES[form]))


def test_a_loss_of_plain_operators_is_recognised() -> None:
    nodes = [
        helper.make_node("Cast", ["labels"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["output"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("Sub", ["mean", "numbers"], ["difference"]),
        helper.make_node("ReduceMean", ["difference"], ["loss"], keepdims=0),
    ]
    with pytest.raises(BundleError, match="loss: the model ends in a loss already: a single number"):
        conform(judged(*nodes))


@needs_native
def test_a_training_graph_is_no_network(tmp_path: Path) -> None:
    bundle = build(mlp(4, 2), tmp_path / "b", loss="mse", engine="native")
    with pytest.raises(BundleError, match="this is a training graph"):
        build(bundle.training_model, tmp_path / "c", loss="mse")


@pytest.mark.parametrize(
    ("operator", "loss", "told"),
    [("Softmax", "cross_entropy", True), ("Sigmoid", "bce_with_logits", True), ("Softmax", "mse", False)],
)
def test_probabilities_where_a_loss_takes_logits_are_noted(
    tmp_path: Path, operator: str, loss: str, told: bool
) -> None:
    given, notes = chain(), list[str]()
    given.graph.node.append(helper.make_node(operator, ["output"], ["p"]))
    given.graph.output[0].name = "p"
    build(given, tmp_path / "b", loss=loss, add_note=notes.append)
    assert [f"ends in {operator}, which {loss} applies itself" in note for note in notes] == [True] * told


# ---- what onnxruntime makes of indexing --------------------------------------------------------


def test_steps_of_a_sequence_taken_one_by_one(tmp_path: Path) -> None:
    """Of the Gathers onnxruntime makes one Split, of which a part is not used by anybody."""
    nodes = [
        helper.make_node("MatMul", ["input", "w"], ["h"]),
        helper.make_node("Reshape", ["h", "form"], ["steps"]),
        *(helper.make_node("Gather", ["steps", f"at{i}"], [f"step{i}"], axis=1) for i in range(3)),
        helper.make_node("Mul", ["step0", "step1"], ["product"]),
        helper.make_node("Sub", ["product", "step2"], ["state"]),
        helper.make_node("MatMul", ["state", "v"], ["output"]),
    ]
    places = [numpy_helper.from_array(np.array(i, np.int64), f"at{i}") for i in range(3)]
    form = numpy_helper.from_array(np.array([0, 4, 3], np.int64), "form")
    given = model(nodes, [weight("w", 4, 12), weight("v", 3, 2), form, *places])
    assert_equal(*both_gradients(given, tmp_path))
