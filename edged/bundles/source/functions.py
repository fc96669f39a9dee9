"""Operators that are not ONNX's own: written out where they are functions of standard ones, else refused.

A model may bring functions with it (`FunctionProto`), as some exporters write them, and a library of
operators is an ONNX file with more of them. Written out, they are nothing but standard operators, which
every device has and both engines train. Compiled libraries are not taken: no gradient comes through them,
the step graph cannot have them, and a device would have to load native code that came with a bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx
from onnx import helper, inliner

from edged.bundles.graph.edit import CONTRIB_DOMAIN, opset_of, shortened, subgraphs
from edged.engines.runtime import ort
from edged.errors import BundleError, ConfigError

STANDARD = ("", "ai.onnx")
_ERRORS = (RuntimeError, ValueError, onnx.checker.ValidationError)
_REMEDY = "give it as a function of standard operators: --op-library FILE.onnx, see docs/preflight.md"


def write_out(
    model: onnx.ModelProto,
    library: onnx.ModelProto | None = None,
    add_note: Callable[[str], None] | None = None,
) -> onnx.ModelProto:
    """The model with every function, its own and those of the library, written out.

    Raises ConfigError when the library has no functions; BundleError when a function cannot be written out.
    """
    if library is not None:
        _add(model, library)
    known = {(function.domain, function.name) for function in model.functions}
    called = sorted(
        {f"{n.domain}.{n.op_type}" for n in _nodes(model.graph) if (n.domain, n.op_type) in known}
    )
    if not model.functions:
        return model
    try:
        made = inliner.inline_local_functions(model)
    except _ERRORS as problem:
        what = f"its functions cannot be written out: {ort.one_line(problem)}"
        raise BundleError(what, where=str(model.graph.name)) from problem
    if called and add_note is not None:
        add_note(f"functions written out: {shortened(called)}")
    return made


def _add(model: onnx.ModelProto, library: onnx.ModelProto) -> None:
    if not library.functions:
        remedy = "an ONNX file with a function for each operator; compiled ones are not taken"
        raise ConfigError("the library has no functions", where="--op-library", remedy=remedy)
    own = {(function.domain, function.name) for function in model.functions}
    model.functions.extend(f for f in library.functions if (f.domain, f.name) not in own)
    domains = {entry.domain for entry in model.opset_import}
    for function in library.functions:
        if function.domain not in domains:
            domains.add(function.domain)
            model.opset_import.append(helper.make_opsetid(function.domain, 1))


def refuse_unknown(model: onnx.ModelProto) -> None:
    """Raise BundleError for the first operator that no onnxruntime has, by its name and its node's.

    onnxruntime's own operators pass here: what of them can be trained, the preflight tells.
    """
    version = min(opset_of(model), onnx.defs.onnx_opset_version())
    for node in _nodes(model.graph):
        if node.domain not in STANDARD and node.domain != CONTRIB_DOMAIN:
            what = f"operator {node.domain}.{node.op_type} is a custom one"
            raise BundleError(what, where=f"node {node.name}", remedy=_REMEDY)
        if node.domain in STANDARD and not onnx.defs.has(node.op_type, version, ""):
            what = f"there is no operator {node.op_type} in opset {opset_of(model)}"
            raise BundleError(what, where=f"node {node.name}", remedy=_REMEDY)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for body in subgraphs(node):
            yield from _nodes(body)
