"""The operators that a bundle needs, as onnxruntime's reduced build takes them."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from edged.artifacts.graphs import opset_of, subgraphs
from edged.engines import ort
from edged.engines.runtime import onnxruntime
from edged.errors import BundleError
from edged.storage.bundles import Bundle

if TYPE_CHECKING:
    from collections.abc import Iterator

STANDARD = "ai.onnx"

Needed = dict[tuple[str, int], set[str]]


def required(path: Path) -> Needed:
    """Operators by domain and opset version of every graph in a bundle, as written and as optimised.

    When it loads a graph, onnxruntime puts operators of its own in place of some: a build without those
    would not run what the same version of it, built whole, had run. What this machine's runtime puts there
    is found by letting it write the optimised graph.

    Raises
    ------
    BundleError, CorruptError
        When the bundle cannot be read.
    """
    bundle = Bundle.open(path)
    needed: Needed = defaultdict(set)
    for name in sorted(bundle.files):
        if not name.endswith(".onnx"):
            continue
        file = bundle.path / name
        try:
            model = onnx.load(str(file))
        except (OSError, ValueError) as problem:
            raise BundleError(f"cannot be read: {problem}", where=str(file)) from problem
        for form in (model, _optimised(file)):
            if form is not None:
                _add(form, needed)
    return dict(needed)


def config(path: Path) -> str:
    """The text of a required-operators config, ready for `--include_ops_by_config`."""
    lines = [f"# operators of the bundle {path.name}; onnxruntime {onnxruntime.__version__}"]
    for (domain, version), operators in sorted(required(path).items()):
        lines.append(f"{domain};{version};{','.join(sorted(operators))}")
    return "\n".join(lines) + "\n"


def _add(model: onnx.ModelProto, needed: Needed) -> None:
    versions = {entry.domain or STANDARD: int(entry.version) for entry in model.opset_import}
    for node in _nodes(model.graph):
        domain = node.domain or STANDARD
        needed[domain, versions.get(domain, opset_of(model) if domain == STANDARD else 1)].add(node.op_type)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for body in subgraphs(node):
            yield from _nodes(body)


def _optimised(file: Path) -> onnx.ModelProto | None:
    """What a session makes of the graph; None where a plain session cannot load it."""
    options = ort.session_options(1)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "optimised.onnx"
        options.optimized_model_filepath = str(out)
        try:
            onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        except ort.ERRORS:
            return None
        return onnx.load(str(out)) if out.is_file() else None
