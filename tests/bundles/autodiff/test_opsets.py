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

from edged.bundles.graph.writer import attributes_of
from edged.bundles.source.opset import servable_form, trainable_form
from edged.engines.runtime import ort
from edged.errors import BundleError
from tests.bundles.autodiff.cases import OPSET, Case, ints, number, of
from tests.bundles.autodiff.oracle import assert_refused, derive, gradients, judge
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
        plain = case.opset == OPSET and not case.loss
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
    served = servable_form(given)
    made = trainable_form(served)
    with suppress(*ort.ERRORS):
        expected = outputs(given, values) if is_new(given, opset) else []
        for one, other in zip(outputs(served, values) if expected else [], expected, strict=True):
            if not np.allclose(one, other, rtol=1e-4, atol=1e-5):
                yield f"{case}: outputs"
    if same(made, trainable_form(original)):
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
SHRUNK = """l = Less(x, low) g = Less(high, x) a = Add(x, bias) s = Sub(x, bias) n = Sub(x, x)
            i = Where(g, s, n) y = Where(l, a, i)"""
MEAN = "ReduceMean<axes = [0, 2, 3]>"
NORMAL = f"m = {MEAN}(x) d = Sub(x, m) q = Mul(d, d) v = {MEAN}(q) r = Sqrt(v) y = Div(d, r)"
SCALED = 'y = Resize<mode = "linear">(x, , all)'


def newer(opset: int, body: str, reference: str = "", **tensors: Any) -> Case:
    """A case of a later opset; scales `some` and `all` are settings."""
    fixed = tuple({"some", "all", "low", "high", "bias", *NUMBERS} & tensors.keys())
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
        newer(18, f"y = {name}<noop_with_empty_axes = 1>(x, a)", reference, a=ints())
        for name, reference in (
            ("ReduceSum", "y = Identity(x)"),
            ("ReduceMean", "y = Identity(x)"),
            ("ReduceSumSquare", "y = Mul(x, x)"),
            ("ReduceL1", "y = Abs(x)"),
        )
    ),
    newer(18, "y, z = Split<axis = 3, num_outputs = 2>(x)"),
    newer(18, "p, q, y = Split<axis = -1, num_outputs = 3>(z)", z=of("b", 1, 8)),
    newer(18, "y = Pad(x, p, , a)", p=ints(1, 2, 0, 1), a=ints(3, 1)),
    newer(19, "y = AveragePool<kernel_shape = [2, 2], dilations = [1, 1]>(x)"),
    newer(19, 'y = Pad<mode = "wrap">(x, p)', p=ints(0, 0, 1, 1, 0, 0, 1, 1)),
    newer(19, "y = AveragePool<kernel_shape = [2, 2], dilations = [2, 1]>(x)"),
    newer(19, "y = AveragePool<kernel_shape = [2, 2], dilations = [2, 3], strides = [3, 4]>(x)"),
    newer(18, "y = Resize<axes = [2, 3]>(x, , some)", "y = Resize(x, , all)",
          some=number([2, 2]), all=number([1, 1, 2, 2])),
    newer(18, 'y = Resize<axes = [3], mode = "linear">(x, , some)', SCALED,
          some=number([1.5]), all=number([1, 1, 1, 1.5])),
    newer(13, "y = Shrink<lambd = 0.3, bias = 0.1>(x)", SHRUNK, low=number(-0.3), high=number(0.3),
          bias=number(0.1)),
    newer(13, "y = MeanVarianceNormalization(x)", NORMAL),
    newer(18, "y = CenterCropPad<axes = [2, 3]>(x, s)", s=ints(6, 4)),
    newer(24, "y = Swish(x)"),
    newer(23, "y = RotaryEmbedding(x, c, s)", c=of("b", 4, 3), s=of("b", 4, 3)),
    newer(24, "y, i = TopK<axis = 3>(x, k)", k=ints(2)),
]  # fmt: skip


@pytest.mark.parametrize("case", [case for case in FORMS if case.opset <= NEWEST], ids=str)
def test_gradients_of_what_came_later(case: Case) -> None:
    judge(case, servable_form(case.model()))


REFUSED = [
    (newer(18, "y = Resize<antialias = 1>(x, , some)", some=number([1, 1, 2, 2])), "antialias"),
    (
        newer(19, 'y = Resize<coordinate_transformation_mode = "half_pixel_symmetric">(x, , some)',
              some=number([1, 1, 2, 2])),
        "half_pixel_symmetric",
    ),
    *(
        (newer(18, f"y = {name}<noop_with_empty_axes = 1>(x)"), "runtimes differ")
        for name in ("ReduceSum", "ReduceMean", "ReduceL1", "ReduceLogSumExp")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("case", "reason"), REFUSED, ids=str)
def test_what_cannot_be_trained_is_refused_by_name(case: Case, reason: str) -> None:
    assert_refused(case, reason)


def test_what_has_no_form_in_our_opset_is_refused_by_name() -> None:
    case = newer(28, 'd = DepthToSpace<blocksize = 2>(x) y = SpaceToDepth<blocksize = 2, mode = "CRD">(d)',
                 x=of("b", 4, 4, 6))  # fmt: skip
    if case.opset > NEWEST:
        pytest.skip("this onnx does not have the opset")
    with pytest.raises(BundleError, match="SpaceToDepth has mode, which opset 21 does not have") as raised:
        servable_form(case.model())
    assert raised.value.where == "node SpaceToDepth.1"
