"""The operators that a bundle needs, as onnxruntime's reduced build takes them."""

from __future__ import annotations

import importlib
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
from onnx import TensorProto, helper

from edged.bundles.export.forms import SUFFIX, write_optimised
from edged.bundles.graph.edit import DecodeError, opset_of, subgraphs
from edged.bundles.graph.templates import IR_VERSION, OPSET
from edged.engines import ENGINES
from edged.engines.runtime import ort
from edged.engines.runtime.ort import onnxruntime
from edged.errors import BundleError, ConfigError, UnavailableError
from edged.storage.models.bundles import Bundle

STANDARD = "ai.onnx"
# Standard operators for which onnxruntime-training has kernels; others run their definition instead.
FUNCTIONS = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
# What a board is to do, by the beginnings of the names of the graphs that it loads for it.
PURPOSES = {
    "all": ("",),
    "serving": ("inference_",),
    "native": ("inference_", "training_", "eval_", "optimizer_"),
    "portable": ("inference_", "step_"),
}

Needed = dict[tuple[str, int], set[str]]


def required(path: Path, purpose: str = "all") -> Needed:
    """Operators by domain and opset version of the graphs in a bundle, as written and as optimised.

    When it loads a graph, onnxruntime puts operators of its own in place of some: a build without those
    would not run what the same version of it, built whole, had run. What this machine's runtime puts there
    is found by letting it write the optimised graph. What onnxruntime-training alone runs as one operator is
    counted in both forms, as that and as the operators of its definition.

    Parameters
    ----------
    path
        The bundle.
    purpose
        `serving`; `native` or `portable`, which train and serve; or `all`.

    Raises
    ------
    ConfigError
        When there is no such purpose, or the bundle has nothing for it.
    BundleError, CorruptError
        When the bundle cannot be read.
    """
    needed: Needed = defaultdict(set)
    for file in _graphs(path, purpose):
        if file.suffix == SUFFIX:
            _Typed(needed).add(file)
            continue
        with _on_any_build(file) as files:
            for form in (form for each in files for form in (_load(each), _optimised(each))):
                if form is not None:
                    _add(form, needed)
    return dict(needed)


def config(path: Path, purpose: str = "all", *, types: bool = False) -> str:
    """The text of a required-operators config, ready for `--include_ops_by_config`.

    With `types` an operator is followed by the types that it needs, for those builds that leave out others;
    see `required` for the rest.

    Raises UnavailableError when onnxruntime's own reader of types cannot be used here.
    """
    names = (
        _with_types(path, purpose)
        if types
        else {key: sorted(n) for key, n in required(path, purpose).items()}
    )
    suffix = "" if purpose == "all" else f" for {purpose}"
    lines = [f"# operators of the bundle {path.name}{suffix}; onnxruntime {onnxruntime.__version__}"]
    lines += [f"{domain};{version};{','.join(names[domain, version])}" for domain, version in sorted(names)]
    return "\n".join(lines) + "\n"


def _graphs(path: Path, purpose: str) -> list[Path]:
    if purpose not in PURPOSES:
        raise ConfigError(
            f"there is no purpose {purpose!r}", where="--for", remedy=f"one of {', '.join(PURPOSES)}"
        )
    bundle = Bundle.open(path)
    if purpose in ENGINES and purpose != bundle.engine:
        what = f"the bundle is for the {bundle.engine} engine"
        raise ConfigError(what, where=f"--for {purpose}", remedy=f"build it with --engine {purpose}")
    graphs = [name for name in sorted(bundle.files) if name.endswith((".onnx", SUFFIX))]
    return [bundle.path / name for name in graphs if name.startswith(PURPOSES[purpose])]


@contextmanager
def _on_any_build(file: Path) -> Iterator[list[Path]]:
    """The graph, and beside it the definitions of operators that have no kernel in every build."""
    portable = file.name.startswith("step_")
    special = [node for node in _nodes(_load(file).graph) if portable and node.op_type in FUNCTIONS]
    with tempfile.TemporaryDirectory() as folder:
        others = []
        for i, node in enumerate(special):
            others.append(Path(folder) / f"definition{i}.onnx")
            onnx.save(_definition(node), str(others[-1]))
        yield [file, *others]


def _definition(node: onnx.NodeProto) -> onnx.ModelProto:
    """What an operator on logits and classes is defined by, as a model of its own."""
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    kinds = [(TensorProto.FLOAT, ["n", 2]), (TensorProto.INT64, ["n"]), (TensorProto.FLOAT, [2])]
    given = zip(node.input, kinds, strict=False)  # weights of classes may be left out
    inputs = [helper.make_tensor_value_info(name, *typed) for name, typed in given if name]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output if name]
    graph = helper.make_graph([alone], node.op_type, inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    wanted = [("", name) for name in FUNCTIONS]
    try:
        return onnx.inliner.inline_selected_functions(model, wanted, inline_schema_functions=True)
    except TypeError as problem:
        raise UnavailableError(
            f"onnx {onnx.__version__} cannot tell what an operator is defined by",
            where="onnx.inliner",
            remedy="pip install --upgrade onnx",
        ) from problem


def _load(file: Path) -> onnx.ModelProto:
    try:
        return onnx.load(str(file))
    except (OSError, ValueError, DecodeError) as problem:
        raise BundleError(f"cannot be read: {problem}", where=str(file)) from problem


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


class _Typed:
    """Operators and types of graphs in ORT format, found by onnxruntime's own reader."""

    def __init__(self, needed: Needed) -> None:
        try:
            self._reader = importlib.import_module("onnxruntime.tools.ort_format_model")
        except ImportError as problem:
            raise UnavailableError(
                f"operators of a graph in ORT format cannot be told: {problem}",
                where="onnxruntime.tools",
                remedy="pip install flatbuffers",
            ) from problem
        self._needed = needed
        self._types: Any = self._reader.OperatorTypeUsageManager()

    def add(self, file: Path) -> None:
        """Count the operators of a file in ORT format."""
        found: dict[str, dict[int, set[str]]] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # it leaves the closing to others
            self._reader.OrtFormatModelProcessor(str(file), found, self._types).process()
        for domain, versions in found.items():
            for version, operators in versions.items():
                self._needed[domain, version] |= operators

    def entry(self, domain: str, operator: str) -> str:
        """The operator as it stands in a config, with its types where they make a difference."""
        return operator + (self._types.get_config_entry(domain, operator) or "")


def _with_types(path: Path, purpose: str) -> dict[tuple[str, int], list[str]]:
    """As `required`, with types: for them graphs are brought into ORT format, where every tensor has one."""
    needed: Needed = defaultdict(set)
    typed = _Typed(needed)
    with tempfile.TemporaryDirectory() as folder:
        for file in _graphs(path, purpose):
            if file.suffix == SUFFIX:
                typed.add(file)
                continue
            with _on_any_build(file) as files:
                for each, level in ((each, level) for each in files for level in ("none", "all")):
                    out = Path(folder) / f"{level}{SUFFIX}"
                    write_optimised(each, out, level)
                    typed.add(out)
    return {
        (domain, version): [typed.entry(domain, operator) for operator in sorted(operators)]
        for (domain, version), operators in needed.items()
    }
