"""Models of other precisions, of whole numbers and of several inputs are brought to one row of float32."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.graph.templates import mlp
from edged.bundles.source.axes import fix_sequence
from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from edged.engines.runtime import ort
from edged.errors import BundleError
from tests.building import build
from tests.networks import in_precision

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle

RNG = np.random.default_rng(0)


def weight(name: str, *shape: int, kind: Any = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array((RNG.standard_normal(shape) / 2).astype(kind), name)


def model(
    nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, list[Any]]], tensors: list[onnx.TensorProto]
) -> onnx.ModelProto:
    takes = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    gives = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 3])]
    graph = helper.make_graph(nodes, "given", takes, gives, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def built(given: onnx.ModelProto, folder: Path) -> tuple[Bundle, list[str]]:
    notes: list[str] = []
    bundle = build(given, folder / "b", loss="cross_entropy", engine="portable", add_note=notes.append)
    return bundle, notes


def assert_it_learns(bundle: Bundle, x: np.ndarray) -> None:
    engine = open_engine("portable", bundle)
    engine.begin(LearningRate(0.05))
    y = np.arange(len(x)) % 3
    before = engine.evaluate(x, y)
    for _ in range(60):
        assert engine.step(x, y).applied
    assert engine.evaluate(x, y) < before / 2


@pytest.mark.parametrize("kind", [TensorProto.DOUBLE, TensorProto.FLOAT16])
def test_other_precisions_compute_in_float32(tmp_path: Path, kind: int) -> None:
    given = in_precision(mlp(4, 3, (16,)), kind)
    x = RNG.standard_normal((6, 4)).astype(np.float32)
    own = x.astype(helper.tensor_dtype_to_np_dtype(kind))
    (expected,) = ort.session(given.SerializeToString()).run(None, {"x": own})
    bundle, notes = built(given, tmp_path)
    assert notes[0].startswith("computed in half or double precision, in float32 now: layer1.bias")
    np.testing.assert_allclose(InferenceModel(bundle.inference_model).predict(x), expected, atol=5e-3)
    assert_it_learns(bundle, x)


def test_half_precision_weights_behind_a_cast_are_parameters(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["w"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "wide"], ["logits"]),
    ]
    given = model(nodes, {"x": (TensorProto.FLOAT, ["n", 4])}, [weight("w", 4, 3, kind=np.float16)])
    bundle, _ = built(given, tmp_path)
    assert bundle.trainable == ("w",)
    assert_it_learns(bundle, RNG.standard_normal((6, 4)).astype(np.float32))


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.INT32])
def test_whole_numbers_come_as_numbers_of_the_row(tmp_path: Path, kind: int) -> None:
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["words"]),
        helper.make_node("ReduceMean", ["words"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["mean", "w"], ["logits"]),
    ]
    tensors = [weight("table", 9, 5), weight("w", 5, 3)]
    given = model(nodes, {"tokens": (kind, ["n", 4])}, tensors)
    tokens = RNG.integers(0, 9, (6, 4))
    own = {"tokens": tokens.astype(helper.tensor_dtype_to_np_dtype(kind))}
    (expected,) = ort.session(given.SerializeToString()).run(None, own)
    bundle, notes = built(given, tmp_path)
    assert notes == [
        "the input 'tokens' takes whole numbers: the row's numbers are cast to them in the graph"
    ]
    x = tokens.astype(np.float32)
    np.testing.assert_allclose(InferenceModel(bundle.inference_model).predict(x), expected, rtol=1e-5)
    assert_it_learns(bundle, x)


def two_inputs() -> onnx.ModelProto:
    """A picture of 2 × 3 and two tokens."""
    nodes = [
        helper.make_node("Flatten", ["picture"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["seen"]),
        helper.make_node("Gather", ["table", "tokens"], ["words"]),
        helper.make_node("ReduceMean", ["words"], ["read"], axes=[1], keepdims=0),
        helper.make_node("Add", ["seen", "read"], ["logits"]),
    ]
    inputs = {"picture": (TensorProto.FLOAT, ["n", 2, 3]), "tokens": (TensorProto.INT64, ["n", 2])}
    return model(nodes, inputs, [weight("w", 6, 3), weight("table", 5, 3)])


@pytest.mark.parametrize("opset", [11, 12, 17])
def test_several_inputs_are_groups_of_one_row(tmp_path: Path, opset: int) -> None:
    picture, tokens = RNG.standard_normal((6, 2, 3)).astype(np.float32), RNG.integers(0, 5, (6, 2))
    given = two_inputs()
    given.opset_import[0].version = opset
    (expected,) = ort.session(given.SerializeToString()).run(None, {"picture": picture, "tokens": tokens})
    bundle, notes = built(given, tmp_path)
    assert notes[0 if opset == 17 else 1 :] == [
        "the inputs are groups of one row of 8 numbers, in this order: picture 6, tokens 2"
    ]
    assert (bundle.input.name, bundle.input.width) == ("features", 8)
    x = np.concatenate([picture.reshape(6, 6), tokens], axis=1).astype(np.float32)
    np.testing.assert_allclose(InferenceModel(bundle.inference_model).predict(x), expected, rtol=1e-5)
    assert_it_learns(bundle, x)


def test_an_open_length_is_refused_with_the_option_that_fixes_it(tmp_path: Path) -> None:
    given = two_inputs()
    given.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "rows"
    told = r"^the length of axis 1 of 'picture' \(rows\) is open, .*--sequence LENGTH"
    with pytest.raises(BundleError, match=told):
        built(given, tmp_path)
    given.graph.input[1].type.tensor_type.shape.dim[1].Clear()
    both = r"several lengths are open besides the batch: axis 1 of 'picture' \(rows\), axis 1 of 'tokens' "
    with pytest.raises(BundleError, match=both):
        built(given, tmp_path)
    with pytest.raises(BundleError, match=both):
        fix_sequence(given, 2, pytest.fail)
