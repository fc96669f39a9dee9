"""Every opset from 13 on: what is written with its signatures has the gradient that it has in opset 17."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edged.bundles.graph.network import OPSET
from edged.bundles.graph.writer import attributes_of
from edged.bundles.source.normalise import standard_opset
from edged.engines.runtime import ort
from edged.errors import BundleError
from tests.bundles.autodiff.cases import Case, ints, number, of
from tests.bundles.autodiff.oracle import derive, gradients, judge
from tests.bundles.autodiff.test_covered import cases

NEWEST = int(onnx.defs.onnx_opset_version())
ROWS = 2


def features(case: Case) -> set[tuple[str, object]]:
    """Operators with their attributes, and with how many inputs they have."""
    nodes = case.model().graph.node
    return {(n.op_type, feature) for n in nodes for feature in (*attributes_of(n), len(n.input))}


@cache
def forms() -> list[Case]:
    """Cases with every attribute and number of inputs of every operator once; none that draws numbers."""
    found, seen = [], set[tuple[str, object]]()
    for case in cases():
        plain = case.opset == OPSET and not case.loss and "microsoft" not in case.body
        if plain and "Dropout" not in case.body and (fresh := features(case) - seen):
            found.append(case)
            seen |= fresh
    return found


def is_new(model: onnx.ModelProto, opset: int) -> bool:
    """Whether this opset, or the first one here, defines one of the model's operators."""
    since = {onnx.defs.get_schema(node.op_type, opset, "").since_version for node in model.graph.node}
    return opset in {*since, 13}


def at(model: onnx.ModelProto, opset: int) -> onnx.ModelProto | None:
    """The model as an exporter writes it for this opset; None where an operator has no such form there."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.opset_import[0].version, made.ir_version = opset, 8 if opset < 20 else 10
    for node in made.graph.node:
        if node.op_type.startswith("Reduce") and node.op_type != "ReduceSum" and opset >= 18:
            axes = next((item for item in node.attribute if item.name == "axes"), None)
            if axes is not None:
                made.graph.initializer.append(
                    numpy_helper.from_array(np.array(axes.ints), f"{node.name}.axes")
                )
                node.input.append(f"{node.name}.axes")
                node.attribute.remove(axes)
        if node.op_type == "Split" and opset >= 18 and len(node.input) == 1:
            node.attribute.append(helper.make_attribute("num_outputs", len(node.output)))
        if not onnx.defs.has(node.op_type, opset, ""):
            return None
        schema = onnx.defs.get_schema(node.op_type, opset, "")
        if not schema.attributes.keys() >= attributes_of(node).keys():
            return None
    return made


def outputs(model: onnx.ModelProto, values: dict[str, Any]) -> list[Any]:
    given = {value.name: values[value.name] for value in model.graph.input}
    return list(ort.session(model.SerializeToString()).run(None, given))


def same(one: onnx.ModelProto, other: onnx.ModelProto) -> bool:
    """Whether two models have the same nodes and tensors."""
    plain = [(n.op_type, *n.input, *n.output, attributes_of(n)) for n in one.graph.node]
    turned = [(n.op_type, *n.input, *n.output, attributes_of(n)) for n in other.graph.node]
    return str(plain) == str(turned) and list(one.graph.initializer) == list(other.graph.initializer)


def differences(case: Case, opset: int) -> Iterator[str]:
    """In which outputs or gradients the case of this opset is another one than that of opset 17."""
    original, values = case.model(ROWS), case.values(ROWS)
    given = at(original, opset)
    if given is None:
        return
    made = standard_opset(given)
    with suppress(*ort.ERRORS):
        expected = outputs(given, values) if is_new(given, opset) else []
        for one, other in zip(outputs(made, values) if expected else [], expected, strict=True):
            if not np.allclose(one, other, rtol=1e-4, atol=1e-5):
                yield f"{case}: outputs"
    if same(made, original):
        return
    then = slopes(case, made)
    if str(case) not in NOW:
        NOW[str(case)] = slopes(case, original)
    for name in case.wanted:
        if not np.allclose(then[name], NOW[str(case)][name], rtol=1e-4, atol=1e-5):
            yield f"{case}: gradient of {name}"


NOW: dict[str, dict[str, Any]] = {}
"""Gradients in opset 17."""


def slopes(case: Case, model: onnx.ModelProto) -> dict[str, Any]:
    """Gradients of the sum of the case's outputs, with the case in the form of this model."""
    derived = derive(case, "whole", model)
    seeds = {end: np.ones(shape(derived.info.dims[end]), np.float32) for end in case.ends}
    return gradients(derived, case.values(ROWS), seeds, ROWS)[1]


def shape(dims: tuple[int | str, ...]) -> list[int]:
    return [size if isinstance(size, int) else int(eval(size, {"batch": ROWS})) for size in dims]  # noqa: S307


@pytest.mark.parametrize(
    "opset",
    [
        opset if opset in {13, 18, 21, NEWEST} else pytest.param(opset, marks=pytest.mark.full)
        for opset in range(13, NEWEST + 1)
    ],
)
def test_gradients_are_those_of_opset_17(opset: int) -> None:
    assert [problem for case in forms() for problem in differences(case, opset)] == []


NUMBERS = {"root": number(2**0.5), "one": number(1), "half": number(0.5)}
GELU = "a = Div(x, root) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half)"
SCALED = 'y = Resize<mode = "linear">(x, , all)'


def newer(opset: int, body: str, reference: str = "", **tensors: Any) -> Case:
    """A case of a later opset; scales `some` and `all` are settings."""
    fixed = tuple({"some", "all", *NUMBERS} & tensors.keys())
    own = {"x": of("b", 2, 4, 6)} | tensors
    return Case(body, own, opset=opset, rows=(2, 1), reference=reference, fixed=fixed)


# What later opsets brought.
FORMS = [
    newer(18, "y = Mish(x)"),
    newer(22, "y = Mish(x)"),
    newer(20, "y = Gelu(x)", GELU, **NUMBERS),
    newer(20, 'y = Gelu<approximate = "tanh">(x)'),
    newer(24, "y = Swish<alpha = 0.5>(x)"),
    newer(28, "y = SwiGLU<alpha = 2.0>(x, z)", z=of("b", 2, 4, 6)),
    newer(18, "y = GroupNormalization<num_groups = 1>(x, g, h)", g=of(1), h=of(1)),
    newer(21, "y = GroupNormalization<num_groups = 1, stash_type = 1>(x, g, h)", g=of(2), h=of(2)),
    newer(23, "y = RMSNormalization(x, g)", g=of(6)),
    newer(23, "y = RMSNormalization<axis = -2, epsilon = 0.1>(x, g)", g=of(4, 6)),
    *(newer(18, f"y = {name}(x, a)", a=ints(-1, 1)) for name in ("ReduceMean", "ReduceLogSumExp")),
    newer(20, "y = ReduceMax(x, a)", a=ints(2)),
    # No axes: an operator of single elements. onnxruntime leaves the square and the absolute value out.
    *(
        newer(18, f"y = {name}<noop_with_empty_axes = 1>({inputs})", reference, a=ints())
        for name, reference in (
            ("ReduceSum", "y = Identity(x)"),
            ("ReduceMean", "y = Identity(x)"),
            ("ReduceLogSumExp", "y = Identity(x)"),
            ("ReduceSumSquare", "y = Mul(x, x)"),
            ("ReduceL1", "y = Abs(x)"),
        )
        for inputs in ("x", "x, a")
    ),
    newer(18, "y, z = Split<axis = 3, num_outputs = 2>(x)"),
    newer(18, "p, q, r, y = Split<axis = -1, num_outputs = 4>(x)"),
    newer(18, "y = Pad(x, p, , a)", p=ints(1, 2, 0, 1), a=ints(3, 1)),
    newer(19, "y = AveragePool<kernel_shape = [2, 2], dilations = [1, 1]>(x)"),
    newer(18, "y = LpPool<kernel_shape = [2, 2], dilations = [1, 1]>(x)"),
    newer(19, "t = Cast<to = 1, saturate = 0>(x) y = Tanh(t)"),
    newer(24, "y, i = TopK<axis = 3>(x, k)", k=ints(2)),
]  # fmt: skip


@pytest.mark.parametrize("case", [case for case in FORMS if case.opset <= NEWEST], ids=str)
def test_gradients_of_what_came_later(case: Case) -> None:
    judge(case, standard_opset(case.model()))


REFUSED = [
    (newer(19, 'y = Pad<mode = "wrap">(x, p)', p=ints(0, 0, 1, 1, 0, 0, 1, 1)), "mode is wrap"),
    (newer(18, "y = LpPool<kernel_shape = [2, 2], dilations = [2, 1]>(x)"), "it has dilations"),
    (newer(18, "y = Resize<antialias = 1>(x, , some)", some=number([1, 1, 2, 2])), "antialias"),
    (
        newer(19, 'y = Resize<coordinate_transformation_mode = "half_pixel_symmetric">(x, , some)',
              some=number([1, 1, 2, 2])),
        "half_pixel_symmetric",
    ),
    (newer(19, "y = AveragePool<kernel_shape = [2, 2], dilations = [2, 1]>(x)"), "it has dilations"),
    (newer(18, "y = LpPool<kernel_shape = [2, 2], ceil_mode = 1>(x)"), "it has ceil_mode"),
    (newer(18, "y = Resize<axes = [2, 3]>(x, , some)", some=number([2, 2])), "its axes are some"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "reason"), REFUSED, ids=str)
def test_what_has_no_form_in_opset_17_is_refused_by_name(case: Case, reason: str) -> None:
    with pytest.raises(BundleError, match=reason) as raised:
        standard_opset(case.model())
    assert raised.value.where.startswith("node ")
