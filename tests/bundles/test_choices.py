"""Choices with a constant condition become plain nodes; loops run where frozen and are refused elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.source.normalise import conform, parameter_names
from edged.bundles.source.opset import fold_choices
from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.runtime import ort
from edged.errors import BundleError
from tests.building import build
from tests.bundles.autodiff.cases import Case, ints, of
from tests.bundles.autodiff.oracle import judge

CONDITION = """d = Shape<start = 1, end = 2>(x) five = Constant<value_int = 5>()
    is = Equal(d, five) q = Squeeze(is)"""
CHOICE = """y = If(q) <then_branch = t () => (float[m, 5, 4] p) { p = MatMul(x, w) },
    else_branch = e () => (float[m, 5, 3] o) { o = Neg(x) }>"""
TENSORS = {"x": of("b", 5, 3), "w": of(3, 4)}
CASES = [
    Case(f"{CONDITION} {CHOICE}", TENSORS, rows=(3, 1)),
    # Names of a branch that another branch has too, and a choice within a choice.
    Case(
        f"""{CONDITION} {CHOICE.replace("y =", "z =")}
        y = If(q) <then_branch = t () => (float[m, 5, 4] p) {{
            p = If(q) <then_branch = t2 () => (float[m, 5, 4] o) {{ o = Tanh(z) }},
              else_branch = e2 () => (float[m, 5, 4] i) {{ i = Neg(z) }}> }},
          else_branch = e () => (float[m, 5, 4] o) {{ o = Neg(z) }}>""",
        TENSORS,
        rows=(3, 1),
    ),
    # The branch is a tensor of the graph around it.
    Case(
        f"""{CONDITION} n = Not(q) z = MatMul(x, w)
        c = If(n) <then_branch = t () => (float[m, 5, 4] p) {{ p = Neg(z) }},
          else_branch = e () => (float[m, 5, 4] o) {{ o = Identity(z) }}> y = Sigmoid(c)""",
        TENSORS,
        rows=(3, 1),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(CASES.index(case)))
def test_values_and_gradients_are_those_of_the_chosen_branch(case: Case) -> None:
    model, notes, values = case.model(), list[str](), {"x": case.values(3)["x"]}
    (expected,) = ort.session(model.SerializeToString()).run(None, values)
    fold_choices(model, notes.append)
    (found,) = ort.session(model.SerializeToString()).run(None, values)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert "If" not in {node.op_type for node in model.graph.node}
    assert notes[0].startswith("choices with a constant condition replaced by their branch: If.")
    judge(case, model)


def test_parameters_of_a_branch_are_parameters_of_the_network() -> None:
    model = given(Case(f"{CONDITION} {CHOICE.replace('MatMul(x, w)', 'MatMul(x, own)')}", TENSORS))
    branch = next(
        item.g for node in model.graph.node for item in node.attribute if item.name == "then_branch"
    )
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    branch.initializer.append(numpy_helper.from_array(values, "own"))
    assert parameter_names(conform(model).graph) == ["own.0"]


def test_a_computed_condition_stays() -> None:
    model = Case(f"s = ReduceSum<keepdims = 0>(x) q = Cast<to = 9>(s) {CHOICE}", TENSORS).model()
    notes: list[str] = []
    fold_choices(model, notes.append)
    assert "If" in {node.op_type for node in model.graph.node}
    assert not notes


# ---- loops and sequences --------------------------------------------------------------------------

CELL = "xw = MatMul(now, w) hr = MatMul(before, r) sum = Add(xw, hr) after = Tanh(sum)"
ZERO = "rows = Shape<start = 0, end = 1>(x) size = Concat<axis = 0>(rows, width) zero = ConstantOfShape(size)"
SCAN = f"""{ZERO} t = Transpose<perm = [1, 0, 2]>(x)
    last, every = Scan<num_scan_inputs = 1, body = b (float[m, 4] before, float[m, 3] now)
      => (float[m, 4] after, float[m, 4] out) {{ {CELL} out = Identity(after) }}>(zero, t)"""
LOOP = f"""{ZERO} n = Constant<value_int = 4>()
    last, every = Loop<body = b (int64 i, bool go, float[m, 4] before)
      => (bool on, float[m, 4] after, float[m, 4] out)
      {{ now = Gather<axis = 1>(x, i) {CELL} on = Identity(go) out = Identity(after) }}>(n, , zero)"""
SEQUENCE = """xw = MatMul(x, w) list = SplitToSequence<axis = 1, keepdims = 0>(xw)
    place = Constant<value_int = 4>() last = SequenceAt(list, place)"""
LAYERS = {"Scan": SCAN, "Loop": LOOP, "SplitToSequence": SEQUENCE}
WEIGHTS = {"x": of("b", 5, 3), "w": of(3, 4), "r": of(4, 4), "head": of(4, 3), "width": ints(4)}


def given(case: Case, rank: int = 3) -> onnx.ModelProto:
    """The case as a file, with the rank of its output."""
    model = case.model()
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", *[None] * (rank - 1)])
    model.graph.output[0].CopyFrom(value)
    return model


@pytest.mark.parametrize("operator", LAYERS)
def test_a_loop_that_a_gradient_must_pass_is_refused_with_a_remedy(operator: str, tmp_path: Path) -> None:
    model = given(Case(f"{LAYERS[operator]} y = MatMul(last, head)", WEIGHTS), rank=2)
    with pytest.raises(BundleError, match=f"operator {operator} cannot be trained through: it ") as raised:
        build(model, tmp_path / "b", loss="cross_entropy", engine="portable")
    assert raised.value.where.startswith(f"node {operator}")
    assert "export the layer as LSTM, GRU or RNN, or freeze it" in raised.value.remedy


@pytest.mark.parametrize("operator", LAYERS)
def test_a_loop_in_a_frozen_part_runs_as_it_is(operator: str, tmp_path: Path) -> None:
    model = given(Case(f"{LAYERS[operator]} y = MatMul(last, head)", WEIGHTS), rank=2)
    bundle = build(model, tmp_path / "b", loss="cross_entropy", engine="portable", train=["head"])
    engine = open_engine("portable", bundle)
    engine.begin(LearningRate(0.05))
    x, y = np.random.default_rng(0).standard_normal((6, 5, 3)).astype(np.float32), np.arange(6) % 3
    before = engine.evaluate(x, y)
    for _ in range(60):
        assert engine.step(x, y).applied
    assert engine.evaluate(x, y) < before
