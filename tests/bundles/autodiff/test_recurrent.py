"""Rules of recurrent layers, for batches that take each of their forms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from edged.engines.runtime import ort
from tests.bundles.autodiff.cases import Case, Drawn, ints, of
from tests.bundles.autodiff.oracle import assert_refused, derive, gradients, judge

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}
# Rows below 8, from there on, and above 24 take different forms.
ROWS = (2, 9, 25)


def layer(
    operator: str,
    attributes: str = "",
    *,
    direction: str = "forward",
    layout: int = 0,
    bias: bool = True,
    first: bool = True,
    ends: tuple[str, ...] = ("y", "h", "c"),
    rows: tuple[int, ...] = ROWS,
    fixed: tuple[str, ...] = (),
    length: int = 3,
) -> Case:
    directions, hidden, width, gates = 1 + (direction == "bidirectional"), 2, 3, GATES[operator]
    tensors: dict[str, Drawn] = {
        "x": of("b", length, width) if layout else of(length, "b", width),
        "w": of(directions, gates * hidden, width),
        "r": of(directions, gates * hidden, hidden),
    }
    inputs = ["x", "w", "r", "q" if bias else '""', '""']
    if bias:
        tensors["q"] = of(directions, 2 * gates * hidden)
    for name in ("s", "t")[: STATES[operator]]:
        if first:
            inputs.append(name)
            tensors[name] = of("b", directions, hidden) if layout else of(directions, "b", hidden)
    given = [f"hidden_size = {hidden}", f'direction = "{direction}"' if direction != "forward" else ""]
    given += [f"layout = {layout}" if layout else "", attributes]
    outputs = ["y", "h", "c"][: 1 + STATES[operator]]
    named = ", ".join(name if name in ends else '""' for name in outputs)
    body = f"{named} = {operator}<{', '.join(filter(None, given))}>({', '.join(inputs)})"
    return Case(body, tensors, fixed, rows, tuple(name for name in outputs if name in ends))


FORMS: dict[str, list[str]] = {
    "LSTM": [""],
    "GRU": ["linear_before_reset = 0", "linear_before_reset = 1"],
    "RNN": ["", 'activations = ["Relu"]'],
}


def both(operator: str, form: str) -> str:
    return form.replace('["Relu"]', '["Relu", "Relu"]')


CASES = [
    case
    for operator, forms in FORMS.items()
    for form in forms
    for case in (
        layer(operator, form),
        layer(operator, form, bias=False),
        layer(operator, form, first=False, ends=("y",)),
        layer(operator, form, bias=False, first=False, ends=("h",)),
        layer(operator, form, direction="reverse"),
        layer(operator, both(operator, form), direction="bidirectional"),
        layer(operator, form, layout=1, rows=(2, 9)),
        layer(operator, form, layout=1, direction="reverse", rows=(2, 9)),
        layer(operator, both(operator, form), layout=1, direction="bidirectional", rows=(2, 25)),
        layer(operator, both(operator, form), direction="bidirectional", bias=False, first=False, rows=(9,)),
        layer(operator, form, length=1),
        layer(operator, form, fixed=("x",)),
        layer(operator, form, fixed=("w", "r", "q")),
    )
] + [
    layer("LSTM", ends=("c",)),
    layer("LSTM", ends=("h",), direction="bidirectional"),
    layer("LSTM", fixed=("s", "t")),
    layer("LSTM", 'activations = ["Sigmoid", "Tanh", "Tanh"]', rows=(2,)),
    # One row: the state in blocks of steps.
    layer("LSTM", length=20, rows=(1, 2)),
    layer("LSTM", length=16, rows=(1,), first=False, ends=("y",), direction="bidirectional"),
    # Two layers, with what exporters write between them.
    Case(
        """h1 = LSTM<hidden_size = 2>(x, w, r) f = Squeeze(h1, one)
           h2, y = LSTM<hidden_size = 2, direction = "reverse">(f, v, s)""",
        {
            "x": of(3, "b", 2),
            "w": of(1, 8, 2),
            "r": of(1, 8, 2),
            "v": of(1, 8, 2),
            "s": of(1, 8, 2),
            "one": ints(1),
        },
        rows=ROWS,
    ),
    # Two layers share their weights.
    Case(
        """h1 = GRU<hidden_size = 2, linear_before_reset = 1>(x, w, r) f = Squeeze(h1, one)
           h2, y = GRU<hidden_size = 2, linear_before_reset = 1>(f, w, r)""",
        {"x": of(3, "b", 2), "w": of(1, 6, 2), "r": of(1, 6, 2), "one": ints(1)},
        rows=(2, 25),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case: Case) -> None:
    judge(case)


def peephole(direction: str) -> Case:
    directions = 1 + (direction == "bidirectional")
    body = f'y = LSTM<hidden_size = 2, direction = "{direction}">(x, w, r, "", "", "", "", p)'
    tensors = {
        "x": of(3, "b", 2),
        "w": of(directions, 8, 2),
        "r": of(directions, 8, 2),
        "p": of(directions, 6),
    }
    return Case(body, tensors)


def lengths(operator: str, direction: str, *, fixed: tuple[str, ...] = ()) -> Case:
    gates, directions = GATES[operator], 1 + (direction == "bidirectional")
    body = f'y = {operator}<hidden_size = 2, direction = "{direction}">(x, w, r, "", l)'
    tensors = {"x": of(3, "b", 2), "w": of(directions, 2 * gates, 2), "r": of(directions, 2 * gates, 2)}
    return Case(
        body.replace("(x", "(x").replace("l)", "n)"), {**tensors, "l": Drawn(("b",), 1, 3.9)}, ("l", *fixed)
    )


def with_lengths(case: Case) -> Case:
    return Case(f"n = Cast<to = 6>(l) {case.body}", case.tensors, case.fixed, (4,))


TURNS = ("forward", "reverse", "bidirectional")
REFUSED = [
    *((peephole(direction), "input P") for direction in TURNS),
    *((with_lengths(lengths(name, turn)), "sequence_lens") for name in GATES for turn in TURNS),
    (layer("LSTM", "clip = 3.0"), "clip is 3"),
    (layer("LSTM", "clip = 3.0", direction="reverse"), "clip is 3"),
    (layer("LSTM", "input_forget = 1"), "input_forget is 1"),
    (layer("LSTM", 'activations = ["Sigmoid", "Relu", "Tanh"]'), "activations is Sigmoid, Relu, Tanh"),
    (layer("GRU", 'activations = ["HardSigmoid", "Tanh"]'), "activations is HardSigmoid, Tanh"),
    (layer("RNN", 'activations = ["Sigmoid"]'), "neither Tanh nor Relu"),
    (
        Case("y = RNN<hidden_size = 2>(x, w, r)", {"x": of("b", 3, 2), "w": of(1, 2, 2), "r": of(1, 2, 2)}),
        "length or width of its sequence varies",
    ),
]


@pytest.mark.parametrize(("case", "reason"), REFUSED, ids=str)
def test_refused(case: Case, reason: str) -> None:
    assert_refused(case, reason)


@pytest.mark.parametrize("direction", TURNS)
@pytest.mark.parametrize(
    "what", [peephole, lambda turn: with_lengths(lengths("LSTM", turn))], ids=["P", "lengths"]
)
def test_what_no_rule_takes_is_computed_as_it_is_where_it_is_frozen(
    what: Callable[[str], Case], direction: str
) -> None:
    whole = what(direction)
    frozen = tuple(name for name in whole.tensors if name != "l")
    case = Case(
        f"{whole.body} z = Mul(y, k)", {**whole.tensors, "k": of()}, (*frozen, *whole.fixed), (4,), ("z",)
    )
    values, model = case.values(4), case.model(4)
    inputs = {value.name: values[value.name] for value in model.graph.input}
    expected = ort.session(model.SerializeToString()).run(None, inputs)
    outputs, _ = gradients(derive(case), values, {"z": np.ones_like(expected[0])}, 4)
    np.testing.assert_allclose(outputs["z"], expected[0], rtol=1e-5, atol=1e-6)
