"""The loss behind the output of a model, as it is named, given, or written in Python.

A function is named as `losses.py:huber` or `package.module:huber`. It is called with a `LossGraph` and the
names of the model's outputs, and returns the name of the loss, one number. Where onnxruntime-training is
installed the name may be that of a block of its `onnxblock` instead.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import onnx
from onnx import TensorProto, helper

from edged.bundles.graph import onnxruntime_generator
from edged.bundles.graph.edit import DTYPES, all_names, refuse_taken, shape_of, subgraphs, value_info
from edged.bundles.graph.writer import NodeWriter
from edged.bundles.losses.named import OUTPUT, CrossEntropy, ExpertsCrossEntropy, ValueLoss
from edged.bundles.source.normalise import parameter_names
from edged.domain.bundle_contents import LossOptions, Tensor
from edged.engines.native import api
from edged.engines.runtime import ort
from edged.errors import BundleError, ConfigError, UnavailableError
from edged.storage.models.bundles import CUSTOM

_KINDS = {code: name for name, code in DTYPES.items()}
_REMEDY = "see docs/losses.md, Functions"


class LossGraph(NodeWriter):
    """Graph that the nodes of a loss are added to.

    `add(operator, inputs, **attributes)` writes a standard operator of opset 21 and returns the name of its
    output; `number(value)` and `constant(array)` write constants.

    Attributes
    ----------
    parameters
        Names of the model's parameters, which may be read.
    labels
        The label that the loss has taken.
    """

    def __init__(self, base: onnx.ModelProto) -> None:
        super().__init__(all_names(base.graph))
        self.parameters = parameter_names(base.graph)
        self.labels: list[Tensor] = []
        self._outputs = {value.name: shape_of(value) for value in base.graph.output}

    def row(self, output: str) -> list[int | str]:
        """Sizes of one row of a model's output."""
        return self._outputs[output][1:]

    def label(self, name: str, row: Sequence[int | str] = (), dtype: str = "float32") -> str:
        """Take the label `(batch, *row)`, values (`float32`) or classes (`int64`); its name."""
        batch = next(iter(self._outputs.values()))[0]
        self.labels.append(Tensor(name, (batch, *row), dtype))
        return name


class FunctionLoss:
    """The loss that the function or block named by `source` writes.

    Raises ConfigError when there is no such module or function, or it cannot be a loss; UnavailableError when
    it is written with onnxruntime-training, and that is not installed.
    """

    name = CUSTOM

    def __init__(self, source: str) -> None:
        self.source = source
        self._given: Any = getattr(_module(source), source.rpartition(":")[2], None)
        self._append = _appended if _is_block(self._given) else _written
        if self._append is _written and (isinstance(self._given, type) or not callable(self._given)):
            raise ConfigError("is no function that writes a loss", where=source, remedy=_REMEDY)

    def build(self, model: onnx.ModelProto, compared: Sequence[str]) -> BuiltLoss:
        """What it adds to `model`, called with the names of these tensors.

        Raises BundleError when it fails, changes the network, or gives no loss that can be trained on.
        """
        base = _base(model, compared)
        try:
            made, loss = self._append(self._given, base, compared)
            return self._read_loss(base, made, str(loss))
        except BundleError:
            raise
        except Exception as problem:
            what = f"cannot be built: {type(problem).__name__}: {ort.one_line(problem)}"
            raise self._refusal(what) from problem

    def _read_loss(self, base: onnx.ModelProto, made: onnx.ModelProto, loss: str) -> BuiltLoss:
        count = len(base.graph.node)
        if list(made.graph.node[:count]) != list(base.graph.node):
            raise self._refusal("changes the network; it may only add nodes")
        nodes = list(made.graph.node[count:])
        if any(True for item in nodes for _ in subgraphs(item)):
            raise self._refusal("must do without If, Loop and Scan")
        known = {tensor.name for tensor in base.graph.initializer}
        constants = [tensor for tensor in made.graph.initializer if tensor.name not in known]
        taken = {value.name for value in base.graph.input}
        given = [value for value in made.graph.input if value.name not in taken]
        shape = _shape(base, given, nodes, constants, loss)
        if shape is None or any(size != 1 for size in shape):
            returned = "of unknown shape or type" if shape is None else f"of shape {shape}"
            raise self._refusal(
                f"must be one float32 number, what it returns is {returned}: reduce it by its mean"
            )
        if len(given) != 1:
            raise self._refusal(f"takes {len(given) or 'no'} labels: give it one, with graph.label")
        return BuiltLoss(self._label(given[0]), tuple(nodes), tuple(constants), loss, not shape)

    def _label(self, value: onnx.ValueInfoProto) -> Tensor:
        shape, kind = shape_of(value), value.type.tensor_type.elem_type
        if kind not in _KINDS or not shape or not all(isinstance(size, int) for size in shape[1:]):
            raise self._refusal(
                f"takes {value.name!r}: float32 or int64, of fixed sizes but for the batch, can be a label"
            )
        return Tensor(str(value.name), tuple(shape), _KINDS[kind])

    def _refusal(self, what: str) -> BundleError:
        return BundleError(f"the loss {what}", where=self.source, remedy=_REMEDY)


@dataclass(frozen=True)
class BuiltLoss:
    """The nodes of a loss, and the label that they take; `flat` is whether the loss has no axes."""

    label: Tensor
    added: tuple[onnx.NodeProto, ...]
    constants: tuple[onnx.TensorProto, ...]
    loss: str
    flat: bool

    def nodes(self, read: str) -> list[onnx.NodeProto]:
        """The nodes with names that begin with `loss.`; the label is read under the name `read`."""
        to, names = NodeWriter(), {self.label.name: read, "": ""}
        for tensor in self.constants:
            names[tensor.name] = to.add("Constant", [], f"{OUTPUT}.{tensor.name}", value=tensor)
        names |= {name: f"{OUTPUT}.{name}" for item in self.added for name in item.output if name}
        for i, item in enumerate(self.added):
            inputs, outputs = ([names.get(name, name) for name in side] for side in (item.input, item.output))
            copy = helper.make_node(item.op_type, inputs, outputs, f"{OUTPUT}.node{i}", domain=item.domain)
            copy.attribute.extend(item.attribute)
            to.nodes.append(copy)
        whole = [names.get(self.loss, self.loss)]
        to.add("Identity", whole, OUTPUT) if self.flat else to.add("ReduceSum", whole, OUTPUT, keepdims=0)
        return to.nodes


Loss: TypeAlias = ValueLoss | CrossEntropy | FunctionLoss
_CLASSES = CrossEntropy.name


@dataclass(frozen=True)
class Objective:
    """A loss that is ready: `write` makes its nodes, given the tensor that is read for the label.

    `outputs` are those of the model, the main one first; `options` are for people alone.
    """

    name: str
    outputs: tuple[Tensor, ...]
    label: Tensor
    write: Callable[[str], list[onnx.NodeProto]]
    options: LossOptions = field(default_factory=LossOptions)

    def add_to(self, graph: onnx.GraphProto, read: str) -> str:
        """Add the nodes, which read the tensor `read` for the label; the name of the loss.

        Raises BundleError when the model uses a name that is needed.
        """
        refuse_taken(graph, [OUTPUT])
        graph.node.extend(self.write(read))
        return OUTPUT


def keeps_all_outputs(loss: Loss) -> bool:
    """Whether the model keeps all of its outputs for this loss; else it must have one."""
    return isinstance(loss, (FunctionLoss, ExpertsCrossEntropy))


def objective(
    model: onnx.ModelProto, outputs: Sequence[Tensor], compared: Sequence[str], loss: Loss
) -> Objective:
    """Put a loss behind these outputs of the model.

    `compared` are the tensors that the loss sees in place of them.

    Raises BundleError or ConfigError when it does not fit its output.
    """
    if isinstance(loss, FunctionLoss):
        built = loss.build(model, compared)
        return Objective(loss.name, tuple(outputs), built.label, built.nodes)
    write = partial(loss.nodes, replace(outputs[0], name=compared[0]))
    return Objective(loss.name, tuple(outputs), loss.label(outputs[0]), write, loss.options)


def parse(
    text: str, class_weights: str | None = None, ignore_index: int | None = None, label_smoothing: float = 0.0
) -> Loss:
    """Return the loss that `--loss` names: `mse`; or `losses.py:huber`, `package.module:huber`.

    `class_weights` such as `1,2,0.5`, `ignore_index` and `label_smoothing` are for cross_entropy.

    Raises ConfigError when the text is no loss, or one without classes to weigh; UnavailableError for a block
    of onnxruntime-training, where that is not installed.
    """
    plain = class_weights is None and ignore_index is None and not label_smoothing
    if plain and text != _CLASSES:
        return FunctionLoss(text) if ":" in text else ValueLoss(text)
    if text != _CLASSES:
        raise ConfigError(f"loss {text} has no classes to weigh or to smooth", where="--loss",
                          remedy=f"use {_CLASSES}")  # fmt: skip
    try:
        found = None if class_weights is None else tuple(float(part) for part in class_weights.split(","))
    except ValueError:
        raise ConfigError(f"{class_weights!r} is no list of numbers", where="--class-weights",
                          remedy="such as 1,2,0.5") from None  # fmt: skip
    return CrossEntropy(found, ignore_index, label_smoothing)


def _is_block(given: Any) -> bool:
    """Whether it is a block of onnxruntime-training's onnxblock for a loss, or the class of one."""
    if not api.available():
        return False
    kind, blocks = given if isinstance(given, type) else type(given), api.load("onnxblock")
    return issubclass(kind, blocks.Block) and not issubclass(kind, blocks.TrainingBlock)


def _appended(given: Any, base: onnx.ModelProto, compared: Sequence[str]) -> tuple[onnx.ModelProto, Any]:
    """The model with what the block adds, called as `generate_artifacts` calls it, and what it returns."""
    onnxruntime_generator.prepare_blocks()
    made = onnx.ModelProto()
    with api.load("onnxblock").base(base) as handle:
        name = (given() if isinstance(given, type) else given)(*compared)
        made.CopyFrom(handle.model)
    return made, name if isinstance(name, str) else next(iter(name or ()), None)


def _written(
    function: Callable[..., str], base: onnx.ModelProto, compared: Sequence[str]
) -> tuple[onnx.ModelProto, str]:
    """The model with what the function writes, and what it returns."""
    graph, made = LossGraph(base), onnx.ModelProto()
    loss = function(graph, *compared)
    made.CopyFrom(base)
    made.graph.node.extend(graph.nodes)
    made.graph.initializer.extend(graph.constants)
    made.graph.input.extend(map(value_info, graph.labels))
    return made, loss


def _base(model: onnx.ModelProto, compared: Sequence[str]) -> onnx.ModelProto:
    """The model with these tensors as its outputs, so that their shapes can be looked up."""
    base = onnx.ModelProto()
    base.CopyFrom(onnx.shape_inference.infer_shapes(model))
    known = {value.name: value for value in (*base.graph.value_info, *base.graph.output)}
    wanted = [known[name] for name in compared]
    del base.graph.output[:]
    base.graph.output.extend(wanted)
    return base


def _shape(
    base: onnx.ModelProto,
    labels: Sequence[onnx.ValueInfoProto],
    nodes: Sequence[onnx.NodeProto],
    constants: Sequence[onnx.TensorProto],
    loss: str,
) -> list[int | str] | None:
    """The shape of the loss, None where it is no known float32 tensor; raises what the checker finds."""
    graph = base.graph
    read = {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}
    for tensor in graph.initializer:
        read[tensor.name] = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
    known = [*read.values(), *labels]
    alone = helper.make_graph(nodes, "loss", known, known[:1], constants)
    model = helper.make_model(alone, opset_imports=base.opset_import, ir_version=base.ir_version)
    onnx.checker.check_model(model, full_check=True)
    for value in onnx.shape_inference.infer_shapes(model).graph.value_info:
        kind = value.type.tensor_type
        if value.name == loss and kind.elem_type == TensorProto.FLOAT and kind.HasField("shape"):
            return shape_of(value)
    return None


def _module(source: str) -> ModuleType:
    place = source.rpartition(":")[0]
    if api.available():
        api.load("onnxblock")  # a file that imports it does not get PyTorch with it
    try:
        with _from_here():
            return _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except Exception as problem:
        if isinstance(problem, ImportError) and (problem.name or "").startswith("onnxruntime.training"):
            what = "this loss needs onnxruntime-training, which is not installed"
            remedy = "write it as a function: see docs/losses.md, Functions"
            raise UnavailableError(what, where=source, remedy=remedy) from problem
        what = f"cannot be imported: {type(problem).__name__}: {ort.one_line(problem)}"
        raise ConfigError(what, where=place or source, remedy="such as losses.py:huber") from problem


def _from_file(path: Path) -> ModuleType:
    name = f"edged_loss_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def _from_here() -> Iterator[None]:
    """Let modules of the working directory be found, as `python -m` would."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
