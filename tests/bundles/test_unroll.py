"""Loops and choices are written out: the same values, the right gradients, or a refusal by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.build import build
from edged.bundles.source.normalise import conform, parameter_names
from edged.bundles.source.unroll import unroll
from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.runtime import ort
from edged.errors import BundleError
from tests.bundles.autodiff.cases import Case, ints, of
from tests.bundles.autodiff.oracle import derive, judge

H = "zero = ConstantOfShape(size)"
CELL = "xw = MatMul(now, w) hr = MatMul(before, r) sum = Add(xw, hr) after = Tanh(sum)"


def scan(attributes: str = "num_scan_inputs = 1", sequence: str = "t") -> str:
    """A layer over the time axis, which lies in front of `t` and behind the batch of `x`."""
    return f"""rows = Shape<start = 0, end = 1>(x) size = Concat<axis = 0>(rows, width) {H}
    t = Transpose<perm = [1, 0, 2]>(x)
    last, every = Scan<{attributes}, body = b (float[m, 4] before, float[m, 3] now)
      => (float[m, 4] after, float[m, 4] out) {{ {CELL} out = Identity(after) }}>(zero, {sequence})"""


def loop(count: str, body: str, states: str = "zero") -> str:
    return f"""rows = Shape<start = 0, end = 1>(x) size = Concat<axis = 0>(rows, width) {H} {count}
    last, every = Loop<body = b (int64 i, bool go, float[m, 4] before)
      => (bool on, float[m, 4] after, float[m, 4] out) {{ {body} out = Identity(after) }}>(n, c, {states})"""


COMPUTED = "e = Exp(x) most = ReduceMax<keepdims = 0>(e) n = Cast<to = 7>(most)"
PICKED = f"now = Gather<axis = 1>(x, i) {CELL} on = Identity(go)"
LENGTH = "all = Shape(x) place = Constant<value_int = 1>() n = Gather(all, place)"
LIST = f"""n = Constant<value_int = 3>() none = SequenceEmpty() rows = Shape<start = 0, end = 1>(x)
    size = Concat<axis = 0>(rows, width) {H}
    last, list = Loop<body = b (int64 i, bool go, float[m, 4] before, seq(float[m, 4]) s)
      => (bool on, float[m, 4] after, seq(float[m, 4]) longer)
      {{ {PICKED} longer = SequenceInsert(s, after) }}>(n, , zero, none)"""
TENSORS = {"x": of("b", 5, 3), "w": of(3, 4), "r": of(4, 4), "width": ints(4), "c": np.array(True)}
END = "s = ReduceSum<keepdims = 0>(every, front) y = Add(s, last)"
COUNT = "n = Constant<value_int = 4>()"
WHILE = f"now = Gather<axis = 1>(x, i) {CELL} two = Constant<value_int = 2>() on = Less(i, two)"


def case(body: str, end: str = END, **tensors: object) -> Case:
    return Case(f"{body} {end}", TENSORS | {"front": ints(0)} | tensors, rows=(3, 1))


def collected(end: str, same: str) -> Case:
    """Tensors that a loop collects in a sequence; `same` makes them of the loop's stacked output."""
    body, reference = f"{LIST} {end}", f"{loop('n = Constant<value_int = 3>()', PICKED)} {same}"
    return Case(
        body, TENSORS | {"shape": ints(-1, 4), "place": np.array(1)}, reference=reference, rows=(3, 1)
    )


CASES = [
    case(scan()),
    case(scan("num_scan_inputs = 1, scan_input_axes = [1]", "x")),
    case(scan("num_scan_inputs = 1, scan_input_axes = [-2], scan_output_axes = [1]", "x"), front=ints(1)),
    case(
        scan("num_scan_inputs = 1, scan_input_directions = [1]"), "y = Slice(every, front, one)", one=ints(1)
    ),
    case(
        scan("num_scan_inputs = 1, scan_input_directions = [1], scan_output_directions = [1]"),
        "y = Slice(every, front, one)",
        one=ints(1),
    ),
    case(loop(COUNT, PICKED)),
    case(loop(LENGTH, PICKED)),
    case(loop(COUNT, WHILE)),
    case(loop("n = Constant<value_int = 9223372036854775807>()", WHILE)),
    # As TensorFlow's are: the condition is computed from counters that are carried, and so are the weights.
    case(
        f"""rows = Shape<start = 0, end = 1>(x) size = Concat<axis = 0>(rows, width) {H}
        n = Constant<value_int = 9223372036854775807>() first = Constant<value_int = 0>()
        steps = Constant<value_int = 4>() early = Less(first, steps)
        t, m, u, last, every = Loop<
          body = b (int64 i, bool go, int64 time, int64 most, float[3, 4] v, float[m, 4] before)
          => (bool on, int64 next, int64 most2, float[3, 4] v2, float[m, 4] after, float[m, 4] out) {{
            one = Constant<value_int = 1>() next = Add(time, one) here = Less(next, most) also = Less(i, most)
            on = And(here, also) now = Gather<axis = 1>(x, time)
            {CELL.replace("now, w", "now, v")}
            most2 = Identity(most) v2 = Identity(v)
            out = Identity(after) }}>(n, early, first, steps, w, zero)"""
    ),
    # A sequence that is built, as PyTorch's exporter does it.
    collected(
        "y = ConcatFromSequence<axis = 1, new_axis = 1>(list)", "y = Transpose<perm = [1, 0, 2]>(every)"
    ),
    collected("f = ConcatFromSequence<axis = 0>(list) y = Tanh(f)", "f = Reshape(every, shape) y = Tanh(f)"),
    collected("y = SequenceAt(list, place)", "y = Gather(every, place)"),
    # A choice, in a round and outside, that sizes settle.
    case(
        "all = Shape(x) n = Size(x) d = Shape<start = 1, end = 2>(x) five = Constant<value_int = 5>()"
        " is = Equal(d, five) q = Squeeze(is)",
        "y = If(q) <then_branch = t () => (float[m, 5, 4] p) { p = MatMul(x, w) },"
        " else_branch = e () => (float[m, 5, 3] o) { o = Neg(x) }>",
    ),
    case(
        loop(
            COUNT,
            """now = Gather<axis = 1>(x, i) two = Constant<value_int = 2>() early = Less(i, two)
            xw = MatMul(now, w) hr = MatMul(before, r) sum = Add(xw, hr)
            after = If(early) <then_branch = t () => (float[m, 4] p) { p = Tanh(sum) },
              else_branch = e () => (float[m, 4] q) { q = Sigmoid(sum) }> on = Identity(go)""",
        )
    ),
    # A loop within a loop.
    case(
        loop(
            "n = Constant<value_int = 2>()",
            """k = Constant<value_int = 3>() on = Identity(go)
            after = Loop<body = inner (int64 j, bool gone, float[m, 4] before2)
              => (bool on2, float[m, 4] after2)
            { now = Gather<axis = 1>(x, j) xw = MatMul(now, w) hr = MatMul(before2, r) sum = Add(xw, hr)
               after2 = Tanh(sum) on2 = Identity(gone) }>(k, , before)""",
        )
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(CASES.index(case)))
def test_values_and_gradients_are_those_of_the_loop(case: Case) -> None:
    model, notes, values = case.model(), list[str](), {"x": case.values(3)["x"]}
    (expected,) = ort.session(model.SerializeToString()).run(None, values)
    assert unroll(model, notes.append) >= {"w"}
    (found,) = ort.session(model.SerializeToString()).run(None, values)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert not {"If", "Loop", "Scan", "SequenceInsert"}.intersection(n.op_type for n in model.graph.node)
    assert notes
    assert notes[0].startswith("loops and choices written out: ")
    judge(case, model)


def given(case: Case, opset: int = 17, rank: int = 3) -> onnx.ModelProto:
    """The case as a file of this opset, with the rank of its output."""
    model = case.model()
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", *[None] * (rank - 1)])
    )
    model.opset_import[0].version = opset
    return model


def by_hand(x: np.ndarray, w: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Every state of the layer, the batch in front."""
    states, state = [], np.zeros((len(x), r.shape[0]))
    for now in x.swapaxes(0, 1):
        state = np.tanh(now @ w + state @ r)
        states.append(state)
    return np.stack(states, axis=1)


OLDER = f"""t = Transpose<perm = [1, 0, 2]>(x) last, every = Scan<num_scan_inputs = 1,
    body = b (float[m, 4] before, float[m, 3] now) => (float[m, 4] after, float[m, 4] out)
    {{ {CELL} out = Identity(after) }}>(zeros, t) y = Transpose<perm = [1, 0, 2]>(every)"""
ZEROS = {"x": of("b", 5, 3), "w": of(3, 4), "r": of(4, 4), "zeros": np.zeros((1, 4), np.float32)}


@pytest.mark.parametrize("opset", [9, 11, 13, 16, 18, 21, 24, onnx.defs.onnx_opset_version()])
def test_a_loop_of_any_opset_and_zeros_that_it_begins_with_are_no_parameter(opset: int) -> None:
    case = Case(OLDER, ZEROS)
    made, values = conform(given(case, opset)), case.values(2)
    assert parameter_names(made.graph) == ["w", "r"]
    (found,) = ort.session(made.SerializeToString()).run(None, {"x": values["x"]})
    np.testing.assert_allclose(found, by_hand(*(values[name] for name in "xwr")), atol=1e-5)


def test_parameters_of_a_body_are_shared_by_the_rounds_and_stay_one_where_they_are_all_zeros() -> None:
    body = scan().replace("sum = Add(xw, hr)", "hb = Add(hr, bias) sum = Add(xw, hb)")
    model = given(Case(f"{body} y = Transpose<perm = [1, 0, 2]>(every)", TENSORS))
    graph = next(item.g for node in model.graph.node for item in node.attribute if item.name == "body")
    graph.initializer.append(numpy_helper.from_array(np.zeros(4, np.float32), "bias"))
    assert parameter_names(conform(model).graph) == ["w", "r", "bias.0"]


def test_a_count_that_is_computed_is_refused_by_name_where_a_gradient_must_pass() -> None:
    with pytest.raises(BundleError, match="how many rounds it takes is not fixed") as raised:
        derive(Case(f"{loop(COMPUTED, PICKED)} y = Identity(last)", TENSORS))
    assert raised.value.where == "node Loop.6"
    assert "fixed length" in raised.value.remedy


def test_a_loop_that_is_too_long_is_refused_by_name() -> None:
    model = case(
        loop("n = Constant<value_int = 9223372036854775807>()", PICKED.replace("(x, i)", "(x, o)"))
    ).model()
    model.graph.initializer.append(numpy_helper.from_array(np.array(0), "o"))
    with pytest.raises(BundleError, match="would become more than 4000 nodes") as raised:
        unroll(model, lambda _: None)
    assert raised.value.where.startswith("node Loop")
    assert "LSTM" in raised.value.remedy


def test_a_bundle_of_a_loop_learns(tmp_path: Path) -> None:
    body = f"{loop(LENGTH, PICKED)} y = MatMul(last, head)"
    model = given(Case(body, TENSORS | {"head": of(4, 3)}), rank=2)
    bundle = build(model, tmp_path / "b", loss="cross_entropy", engine="portable")
    engine = open_engine("portable", bundle)
    engine.begin(LearningRate(0.05))
    x, y = np.random.default_rng(0).standard_normal((6, 5, 3)).astype(np.float32), np.arange(6) % 3
    before = engine.evaluate(x, y)
    for _ in range(60):
        assert engine.step(x, y).applied
    assert engine.evaluate(x, y) < before / 2
