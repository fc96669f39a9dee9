"""Every rule against the gradient that onnxruntime's training build computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.autodiff import reverse  # noqa: F401  it registers the rules
from edged.bundles.autodiff.tape import BACKWARD, FORWARD
from edged.errors import BundleError
from tests.building import build
from tests.bundles.engines_agree.gradients import assert_equal, both_gradients
from tests.bundles.models import chain, model

RNG = np.random.default_rng(1)


def weight(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name)


def sizes(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def nodes(*steps: tuple[str, str, str, dict[str, Any]]) -> list[onnx.NodeProto]:
    """Nodes written as operator, inputs, outputs and attributes."""
    return [helper.make_node(op, i.split(), o.split(), **attributes) for op, i, o, attributes in steps]


ACTIVATIONS: list[tuple[str, dict[str, Any]]] = [
    ("Relu", {}),
    ("LeakyRelu", {"alpha": 0.1}),
    ("LeakyRelu", {"alpha": 0.0}),
    ("Tanh", {}),
    ("Sigmoid", {}),
    ("Softmax", {"axis": 1}),
    ("Softmax", {"axis": -1}),
    ("LogSoftmax", {"axis": -1}),
    ("Erf", {}),
    ("Exp", {}),
    ("Abs", {}),
    ("Clip", {}),
]


@pytest.mark.parametrize(("operator", "attributes"), ACTIVATIONS, ids=str)
def test_an_activation(tmp_path: Path, operator: str, attributes: dict[str, Any]) -> None:
    assert_equal(*both_gradients(chain(operator, **attributes), tmp_path))


HALF, ROOT, ONE = (
    numpy_helper.from_array(np.float32(value), name)
    for name, value in (("half", 0.5), ("root", np.sqrt(0.5)), ("one", 1.0))
)
Line = tuple[str, str, str, dict[str, Any]]
FIRST: Line = ("MatMul", "input w", "h", {})
LAST: Line = ("MatMul", "a v", "output", {})
ENDS = [weight("w", 4, 4), weight("v", 4, 2)]
STRUCTURES: dict[str, tuple[list[onnx.NodeProto], list[onnx.TensorProto]]] = {
    "gelu": (
        nodes(
            FIRST, ("Mul", "h root", "s", {}), ("Erf", "s", "e", {}), ("Add", "e one", "p", {}),
            ("Mul", "h p", "q", {}), ("Mul", "q half", "a", {}), LAST,
        ),
        [*ENDS, HALF, ROOT, ONE],
    ),
    "silu": (nodes(FIRST, ("Sigmoid", "h", "s", {}), ("Mul", "h s", "a", {}), LAST), ENDS),
    "layer normalisation": (
        nodes(FIRST, ("LayerNormalization", "h g b", "a", {"axis": -1}), LAST),
        [*ENDS, weight("g", 4), weight("b", 4)],
    ),
    "division, both ways": (
        nodes(
            FIRST, ("Mul", "h h", "s", {}), ("Add", "s one", "d", {}), ("Div", "h d", "q", {}),
            ("Div", "q c", "a", {}), LAST,
        ),
        [*ENDS, ONE, weight("c", 1, 4)],
    ),
    "residual": (nodes(FIRST, ("Relu", "h", "r", {}), ("Add", "h r", "a", {}), LAST), ENDS),
    "joined": (
        nodes(
            FIRST, ("Tanh", "h", "t", {}), ("Concat", "h t", "c", {"axis": 1}),
            ("MatMul", "c v", "output", {}),
        ),
        [weight("w", 4, 4), weight("v", 8, 2)],
    ),
    "split": (
        nodes(FIRST, ("Split", "h lengths", "l r", {"axis": 1}), ("Mul", "l r", "a", {}), LAST),
        [weight("w", 4, 4), weight("v", 2, 2), sizes("lengths", 2, 2)],
    ),
    "reshaped": (
        nodes(
            FIRST, ("Reshape", "h to", "m", {}), ("Transpose", "m", "t", {"perm": [0, 2, 1]}),
            ("Flatten", "t", "a", {}), LAST,
        ),
        [*ENDS, sizes("to", -1, 2, 2)],
    ),
    "batched product": (
        nodes(
            FIRST, ("Reshape", "h to", "m", {}), ("MatMul", "m k", "t", {}), ("Flatten", "t", "a", {}), LAST
        ),
        [*ENDS, weight("k", 2, 2), sizes("to", -1, 2, 2)],
    ),
    "attention": (
        nodes(
            FIRST, ("Reshape", "h to", "m", {}), ("Transpose", "m", "t", {"perm": [0, 2, 1]}),
            ("MatMul", "m t", "scores", {}), ("Softmax", "scores", "p", {"axis": -1}),
            ("MatMul", "p m", "o", {}), ("Flatten", "o", "a", {}), LAST,
        ),
        [*ENDS, sizes("to", -1, 2, 2)],
    ),
    "gemm with factors": (
        nodes(("Gemm", "input w c", "h", {"alpha": 0.5, "beta": 2.0}), ("Tanh", "h", "a", {}), LAST),
        [*ENDS, weight("c", 4)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure(tmp_path: Path, name: str) -> None:
    assert_equal(*both_gradients(model(*STRUCTURES[name]), tmp_path))


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "l1", "bce_with_logits"])
@pytest.mark.parametrize("rows", [1, 16, 64])
def test_a_loss_with_any_number_of_rows(tmp_path: Path, loss: str, rows: int) -> None:
    assert_equal(*both_gradients(chain("Tanh"), tmp_path, loss=loss, rows=rows))


def test_more_classes_than_a_table_is_kept_for(tmp_path: Path) -> None:
    wide = nodes(("MatMul", "input w", "output", {}))
    many = model(wide, [weight("w", 4, 70)])
    many.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 70
    assert_equal(*both_gradients(many, tmp_path, loss="cross_entropy"))


def falling() -> onnx.ModelProto:
    """A LeakyRelu whose output does not tell the sign of its input."""
    return model(nodes(FIRST, ("LeakyRelu", "h", "a", {"alpha": -1.0}), LAST), ENDS)


def test_a_slope_below_zero(tmp_path: Path) -> None:
    assert_equal(*both_gradients(falling(), tmp_path))


def positions_in_columns() -> onnx.ModelProto:
    """A pooling whose positions count otherwise, which only the native engine trains."""
    steps = nodes(
        FIRST,
        ("Unsqueeze", "h axis", "u", {}),
        ("MaxPool", "u", "p", {"kernel_shape": [2], "strides": [2], "storage_order": 1}),
        ("Squeeze", "p axis", "s", {}),
        ("MatMul", "s v", "output", {}),
    )
    steps[2].name = "pool"
    return model(steps, [weight("w", 4, 4), weight("v", 2, 2), sizes("axis", 1)])


def test_what_is_not_covered_is_refused_by_node_operator_and_reason(tmp_path: Path) -> None:
    with pytest.raises(BundleError) as caught:
        build(positions_in_columns(), tmp_path / "b", loss="mse", engine="portable")
    assert caught.value.where.startswith("node pool")
    assert "operator MaxPool cannot be trained through: its storage_order is 1" in caught.value.what
    assert "freeze what is before it" in caught.value.remedy
    assert not (tmp_path / "b").exists()


def test_frozen_in_front_of_it_the_rest_can_be_trained(tmp_path: Path) -> None:
    given = positions_in_columns()
    bundle = build(given, tmp_path / "b", loss="mse", engine="portable", freeze=["w"])
    assert bundle.trainable == ("v",)


def test_every_rule_states_its_formula() -> None:
    for operator, rule in [*BACKWARD.items(), *FORWARD.items()]:
        assert rule.__doc__, operator


def test_step_graphs_hold_standard_operators_alone_and_suit_old_runtimes(tmp_path: Path) -> None:
    bundle = build(model(*STRUCTURES["gelu"]), tmp_path / "b", loss="cross_entropy")
    for name in ("step_model.onnx", "step_carry_model.onnx", "step_eval_model.onnx"):
        graph = onnx.load(str(bundle.path / name))
        assert [(entry.domain, entry.version) for entry in graph.opset_import] == [("", 21)]
        assert graph.ir_version <= 8
        assert {item.domain for item in graph.graph.node} == {""}
        onnx.checker.check_model(graph, full_check=True)


def test_weights_given_as_numbers_instead_of_bytes_are_found_too(tmp_path: Path) -> None:
    plain = chain("Tanh")
    for tensor in plain.graph.initializer:
        values = numpy_helper.to_array(tensor).ravel().tolist()
        tensor.CopyFrom(helper.make_tensor(tensor.name, TensorProto.FLOAT, list(tensor.dims), values))
    assert_equal(*both_gradients(plain, tmp_path))
