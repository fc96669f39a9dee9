"""Gradients of a weighted sum of a graph's outputs, by our rules and by two judges that know nothing of them.

The judges are central differences in double precision and `onnx-ad`. Three seeds go through every rule: a
random one of the output's shape, and two that stand for the same number along all axes or all but the first,
as the gradients of sums and means do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ad
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from edged.bundles.autodiff.forms import plain_forms
from edged.bundles.autodiff.reverse import active_tensors, write_backward, write_forward
from edged.bundles.autodiff.rules.losses import mark
from edged.bundles.autodiff.shapes import examine
from edged.bundles.autodiff.tape import BACKWARD, BATCH, NOISE, WEIGHTS, Adjoint, Tape, TensorInfo
from edged.bundles.graph.edit import all_names, subgraphs
from edged.bundles.source.opset import servable_form, trainable_form
from edged.engines.runtime import ort
from edged.errors import BundleError
from tests.bundles.autodiff.reference import OPERATORS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.bundles.autodiff.cases import Case

    Arrays = dict[str, NDArray[Any]]
    Function = Callable[[Mapping[str, NDArray[Any]]], list[NDArray[Any]]]

# Elements of a tensor whose differences are taken one by one; a random direction is among them, too.
ELEMENTS = 10
STEP = 1e-5
# Which judges have spoken on an operator.
JUDGED: dict[str, set[str]] = {}
# Parts of bodies that onnx-ad 0.3.0 derives wrongly, as differences show.
WRONG_THERE = ("bi,j->b",)


@dataclass
class Derived:
    """A graph with its gradients, as it was written."""

    tape: Tape
    info: TensorInfo
    ends: tuple[str, ...]
    found: dict[str, Adjoint]
    model: onnx.ModelProto
    session: Any = None


def derive(case: Case, form: str = "whole", model: onnx.ModelProto | None = None) -> Derived:
    """Write the gradients of a case for a seed of this form: `whole`, `rows` or `number`."""
    made = plain_forms(trainable_form(case.model() if model is None else model))
    wanted = case.wanted
    info = examine(made, [*wanted, *case.frozen])
    nodes = list(made.graph.node)
    mark(nodes, BATCH, info.dims)
    active = active_tensors(nodes, wanted, case.ends, info.kinds)
    tape = Tape(info, all_names(made.graph), active=active, trainable=wanted, loss=case.loss)
    write_forward(nodes, tape)
    seeds = {end: Adjoint(f"seed.{end}", _seeded(info.dims[end], form)) for end in case.ends if end in active}
    return Derived(tape, info, case.ends, write_backward(nodes, seeds, tape), made)


def _seeded(dims: tuple[int | str, ...], form: str) -> tuple[int | str, ...]:
    if form == "whole":
        return dims
    return tuple(size if form == "rows" and place == 0 else 1 for place, size in enumerate(dims))


def gradients(derived: Derived, values: Arrays, seeds: Arrays, rows: int) -> tuple[Arrays, Arrays]:
    """Outputs and gradients of a derived graph, by onnxruntime; adjoints must have the sizes they claim."""
    tape, given = derived.tape, {**values, **{f"seed.{name}": seed for name, seed in seeds.items()}}
    given[WEIGHTS] = values.get("weights", np.ones((rows, 1), np.float32))
    given[NOISE] = values.get("noise", np.zeros((rows, tape.noise_width), np.float32))
    if derived.session is None:
        derived.session = _session(derived, given)
    names = [value.name for value in derived.session.get_outputs()]
    inputs = {value.name: np.asarray(given[value.name]) for value in derived.session.get_inputs()}
    found = dict(zip(names, derived.session.run(None, inputs), strict=True))
    for name, adjoint in derived.found.items():
        claimed = tuple(_rows(size, rows) for size in adjoint.dims)
        assert found[f"of.{name}"].shape == claimed, f"the adjoint of {name} claims {adjoint.dims}"
    outputs = {name: found[f"end.{name}"] for name in derived.ends}
    return outputs, {
        name: np.broadcast_to(found[f"of.{name}"], values[name].shape)
        if name in derived.found
        else np.zeros_like(values[name])
        for name in values
    }


def _session(derived: Derived, given: Arrays) -> Any:
    tape = derived.tape
    ends = [helper.make_node("Identity", [name], [f"end.{name}"]) for name in derived.ends]
    ends += [helper.make_node("Identity", [a.name], [f"of.{name}"]) for name, a in derived.found.items()]
    nodes = [*tape.nodes, *ends]
    read = {name for node in nodes for name in _reads(node)}
    given = {name: np.asarray(value) for name, value in given.items() if name in read}
    fixed = [t for t in derived.model.graph.initializer if t.name not in given]
    graph = helper.make_graph(
        nodes,
        "derived",
        [_open(name, value) for name, value in given.items()],
        [onnx.ValueInfoProto(name=node.output[0]) for node in ends],
        [*fixed, *tape.constants],
    )
    opsets = list(derived.model.opset_import)
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return ort.session(made.SerializeToString())


def _rows(size: int | str, rows: int) -> int:
    return size if isinstance(size, int) else int(eval(size, {BATCH: rows}))  # noqa: S307  such as 2*batch+1


def _reads(node: onnx.NodeProto) -> set[str]:
    inner = {name for body in subgraphs(node) for each in body.node for name in _reads(each)}
    return {*node.input, *inner, *(o.name for body in subgraphs(node) for o in body.output)}


def _open(name: str, value: NDArray[Any]) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_value_info(name, kind, [None] * value.ndim)


# ---- central differences ----------------------------------------------------------------------


def in_double(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    """The model with everything in double precision; these initialisers are inputs."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    free = [(t.name, len(t.dims)) for t in graph.initializer if t.name in names]
    kept = [t for t in graph.initializer if t.name not in names]
    del graph.initializer[:], graph.value_info[:]
    graph.initializer.extend(kept)
    graph.input.extend(
        helper.make_tensor_value_info(name, TensorProto.DOUBLE, [None] * rank) for name, rank in free
    )
    _double(graph)
    return made


def _double(graph: onnx.GraphProto) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in graph.initializer:
        _wider(tensor)
    for node in graph.node:
        for item in node.attribute:
            _double_attribute(item)
        # Without a value it makes float32 zeros.
        if node.op_type == "ConstantOfShape" and not node.attribute:
            node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))
        for body in subgraphs(node):
            _double(body)


def _double_attribute(item: onnx.AttributeProto) -> None:
    if item.name == "value_float":
        item.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(np.array(float(item.f)))))
    elif item.type == onnx.AttributeProto.TENSOR:
        _wider(item.t)
    elif (item.name in ("to", "dtype") and item.i == TensorProto.FLOAT) or item.name == "stash_type":
        item.i = TensorProto.DOUBLE


def _wider(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name)
        )


def forward_of(model: onnx.ModelProto, values: Arrays, expected: list[NDArray[Any]]) -> Function:
    """The model as a function of float64 arrays that agrees with onnxruntime's float32 outputs."""
    names = [t.name for t in model.graph.initializer if t.data_type == TensorProto.FLOAT]
    made = in_double(model, names)
    given = {name: _as_double(value) for name, value in values.items()}
    problems = []
    for evaluator in (_by_runtime, _by_reference):
        try:
            function = evaluator(made)
            outputs = function(given)
        except Exception as problem:  # noqa: BLE001  whatever an evaluator cannot do, the next one may
            problems.append(f"{evaluator.__name__}: {problem}")
            continue
        pairs = list(zip(outputs, expected, strict=True))
        if all(a.shape == b.shape and np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs):
            return function
        problems.append(f"{evaluator.__name__}: other values {pairs}")
    raise AssertionError("no evaluator in double precision: " + "; ".join(problems))


def _as_double(value: NDArray[Any]) -> NDArray[Any]:
    return value.astype(np.float64) if value.dtype == np.float32 else value


def _by_runtime(model: onnx.ModelProto) -> Function:
    session = ort.session(model.SerializeToString())
    names = {value.name for value in session.get_inputs()}

    def run(given: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        return list(session.run(None, {name: v for name, v in given.items() if name in names}))

    return run


def _by_reference(model: onnx.ModelProto) -> Function:
    evaluator = ReferenceEvaluator(model, new_ops=OPERATORS)

    def run(given: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        outputs = evaluator.run(None, {name: given[name] for name in evaluator.input_names})
        return [np.asarray(output) for output in outputs]

    return run


def directions(name: str, shape: tuple[int, ...]) -> list[NDArray[np.float64]]:
    """Steps to take in a tensor: single elements, at random where there are many, and all at once."""
    rng = np.random.default_rng(len(name) + sum(shape))
    size = int(np.prod(shape))
    places = range(size) if size <= ELEMENTS else rng.choice(size, ELEMENTS, replace=False)
    steps = [np.zeros(size) for _ in places]
    for step, place in zip(steps, places, strict=True):
        step[place] = 1
    if size > 1:
        steps.append(rng.standard_normal(size))
    return [step.reshape(shape) for step in steps]


def differences(
    function: Function, at: Arrays, name: str, step: NDArray[np.float64]
) -> list[NDArray[np.float64]]:
    """How the outputs change along a direction of one tensor, for each output."""
    sides = [function({**at, name: np.asarray(at[name] + sign * STEP * step)}) for sign in (1, -1)]
    return [(above - below) / (2 * STEP) for above, below in zip(*sides, strict=True)]


# ---- onnx-ad ----------------------------------------------------------------------------------


def by_onnx_ad(
    model: onnx.ModelProto, values: Arrays, seeds: list[Arrays], wanted: list[str]
) -> list[Arrays] | None:
    """Gradients for each of the seeds; None where onnx-ad or onnxruntime does not do it, or finds NaN."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    free = [t for t in graph.initializer if t.name in wanted]
    kept = [t for t in graph.initializer if t.name not in wanted]
    graph.input.extend(helper.make_tensor_value_info(t.name, TensorProto.FLOAT, list(t.dims)) for t in free)
    del graph.initializer[:]
    graph.initializer.extend(kept)
    try:
        made = onnx.shape_inference.infer_shapes(made, data_prop=True)
        reverse = onnx_ad.reverse(made, inputs=wanted, layout="onnx")
        session = ort.session(reverse.SerializeToString())
        given = {v.name: values[v.name] for v in made.graph.input}
        for name in seeds[0]:
            given[f"adj_{name}"] = np.stack([seed[name] for seed in seeds], axis=-1)
        found = session.run([f"adj_{name}" for name in wanted], given)
    except Exception:  # noqa: BLE001  it is alpha: what it cannot do, the differences judge alone
        return None
    # As of an attention to no key at all, where its rule multiplies 0 with infinity.
    if not all(np.isfinite(value).all() for value in found):
        return None
    # What is the same for every seed may come once.
    whole = {
        name: np.broadcast_to(value, (*value.shape[:-1], len(seeds)))
        for name, value in zip(wanted, found, strict=True)
    }
    return [{name: value[..., i] for name, value in whole.items()} for i in range(len(seeds))]


# ---- judging ----------------------------------------------------------------------------------


def judge(case: Case, model: onnx.ModelProto | None = None) -> None:
    """Compare our gradients of a case with those of both judges; AssertionError where they differ.

    `model` is the graph after a conversion, where the case is written in another opset.
    """
    derived = {form: derive(case, form, model) for form in ("whole", "rows", "number")}
    function, judges = None, set[str]()
    for rows in case.rows:
        values, source = case.values(rows), case.judged_model(rows)
        if function is None:
            outputs = _outputs(source, values)
            function = None if case.expected else forward_of(source, values, outputs)
        else:
            outputs = function({name: _as_double(value) for name, value in values.items()})
        seeds, ours = _ours(case, derived, values, outputs, rows)
        if function is None:
            for form, (name, value) in ((f, item) for f in ours for item in (case.expected or {}).items()):
                np.testing.assert_allclose(ours[form][name], value, 1e-5, 1e-6, err_msg=f"{form} {name}")
            judges.add("by hand")
            continue
        _by_differences(case, function, values, seeds, ours)
        judges.add("differences")
        if rows == case.rows[0] and _by_onnx_ad(case, source, values, seeds, ours):
            judges.add("onnx-ad")
    for operator in case.operators:
        JUDGED.setdefault(operator, set()).update(judges)


def _ours(
    case: Case, derived: Mapping[str, Derived], values: Arrays, outputs: list[NDArray[Any]], rows: int
) -> tuple[dict[str, Arrays], dict[str, Arrays]]:
    """Seeds of every form, in the shapes of the outputs, and our gradients for them."""
    rng = np.random.default_rng(rows)
    ours: dict[str, Arrays] = {}
    seeds: dict[str, Arrays] = {form: {} for form in derived}
    for form, made in derived.items():
        small = {}
        for name, output in zip(case.ends, outputs, strict=True):
            dims = tuple(_rows(size, rows) for size in _seeded(made.info.dims[name], form))
            seed = np.ones(dims) if case.expected or case.loss else rng.standard_normal(dims)
            small[name] = np.asarray(seed, np.float32)
            seeds[form][name] = np.broadcast_to(small[name], output.shape)
        came, ours[form] = gradients(made, values, small, rows)
        for name, output in zip(case.ends, outputs, strict=True):
            np.testing.assert_allclose(came[name], output, 1e-4, 1e-5, err_msg=f"forward {name}")
    return seeds, ours


def _outputs(model: onnx.ModelProto, values: Arrays) -> list[NDArray[Any]]:
    given = {value.name: values[value.name] for value in model.graph.input}
    # Recurrent layers with the batch in front have no kernel, newer opsets none in older runtimes.
    for form in (model, plain_forms(trainable_form(_served(model)))):
        with suppress(*ort.ERRORS):
            return list(ort.session(form.SerializeToString()).run(None, given))
    return [np.asarray(found) for found in ReferenceEvaluator(model, new_ops=OPERATORS).run(None, given)]


def _served(model: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return servable_form(made)


def _by_differences(
    case: Case, function: Function, values: Arrays, seeds: Mapping[str, Arrays], ours: Mapping[str, Arrays]
) -> None:
    at = {name: _as_double(value) for name, value in values.items()}
    for name in case.wanted:
        steps = directions(name, values[name].shape)
        slopes = [differences(function, at, name, step) for step in steps]
        for form, seed in seeds.items():
            expected = [
                sum(float((s * seed[e]).sum()) for s, e in zip(slope, case.ends, strict=True))
                for slope in slopes
            ]
            found = [float((ours[form][name] * step).sum()) for step in steps]
            _close(np.array(found), np.array(expected), f"{form} {name}: differences", case.tolerance)


def _by_onnx_ad(
    case: Case,
    source: onnx.ModelProto,
    values: Arrays,
    seeds: Mapping[str, Arrays],
    ours: Mapping[str, Arrays],
) -> bool:
    """Compare with onnx-ad; whether it could tell."""
    if any(part in case.body for part in WRONG_THERE):
        return False
    other = by_onnx_ad(source, values, list(seeds.values()), case.wanted)
    for form, theirs in zip(ours, other or [], strict=False):
        for name in case.wanted:
            _close(ours[form][name], theirs[name], f"{form} {name}: onnx-ad", case.tolerance)
    return other is not None


def _close(found: NDArray[Any], expected: NDArray[Any], what: str, tolerance: float) -> None:
    largest = float(np.abs(expected).max(initial=0.0))
    atol = tolerance * (2e-5 * largest + 1e-5)
    if not (np.abs(found - expected) <= atol + tolerance * 2e-4 * np.abs(expected)).all():
        np.testing.assert_allclose(found, expected, rtol=tolerance * 2e-4, atol=atol, err_msg=what)


def assert_refused(case: Case, reason: str) -> None:
    """Ask for the gradients of a case, which must be refused by the node's name, with a remedy."""
    with pytest.raises(BundleError, match=f"{reason}|the model cannot be run") as raised:
        derive(case)
    if "the model cannot be run" in raised.value.what:
        pytest.skip("this onnxruntime has no kernel for it at all")
    assert raised.value.where.startswith("node ")
    assert raised.value.remedy
    assert BACKWARD
