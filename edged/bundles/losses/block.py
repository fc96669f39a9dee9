"""A loss of one's own as onnxruntime's training package writes them: a block that adds nodes to a graph.

`losses.py:Huber` or `package.module:Huber` names a subclass of `onnxruntime.training.onnxblock.Block`, or an
instance of one. It is called as `generate_artifacts` calls it: with the names of the model's outputs, and it
returns the name of the loss, one number. What it makes inputs of the graph are labels. It may read the
model's parameters by their names.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from onnx import helper

from edged.bundles.graph import onnxruntime_generator
from edged.bundles.graph.edit import DTYPES, node, shape_of, subgraphs
from edged.bundles.losses.builtin import OUTPUT
from edged.engines.native import api
from edged.engines.runtime import ort
from edged.errors import BundleError, ConfigError
from edged.storage.models.bundles import CUSTOM, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import ModuleType

    from edged.bundles.losses.builtin import Nodes

_KINDS = {code: name for name, code in DTYPES.items()}
_REMEDY = "see docs/losses.md, Blocks"


class BlockLoss:
    """The loss that the block named by `source` builds.

    Raises
    ------
    UnavailableError
        Where onnxruntime-training is not installed.
    ConfigError
        When there is no such module or class, or it is no block for a loss.
    """

    name = CUSTOM

    def __init__(self, source: str) -> None:
        self.source = source
        self._blocks = api.load("onnxblock")
        self._given: Any = getattr(_module(source), source.rpartition(":")[2], None)
        if not _is_block(self._given, self._blocks):
            raise ConfigError(
                "is no onnxblock.Block for a loss",
                where=source,
                remedy="name a subclass of onnxruntime.training.onnxblock.Block, no TrainingBlock",
            )

    def made(self) -> Any:
        """Return the block, built from its class if a class was given."""
        return self._given() if isinstance(self._given, type) else self._given

    def build(self, model: onnx.ModelProto, compared: Sequence[str]) -> BuiltBlock:
        """What the block adds to `model`, called with the names of these tensors.

        Raises
        ------
        BundleError
            When it fails, changes the network, or gives no loss that can be trained on.
        """
        base = _base(model, compared)
        onnxruntime_generator.prepare_blocks()
        try:
            with self._blocks.base(base) as handle:
                given = self.made()(*compared)
                made = onnx.ModelProto()
                made.CopyFrom(handle.model)
        except Exception as problem:
            what = f"the loss cannot be built: {type(problem).__name__}: {ort.one_line(problem)}"
            raise BundleError(what, where=self.source, remedy=_REMEDY) from problem
        return self._taken(base, made, given if isinstance(given, str) else next(iter(given or ()), None))

    def _taken(self, base: onnx.ModelProto, made: onnx.ModelProto, loss: Any) -> BuiltBlock:
        count = len(base.graph.node)
        if list(made.graph.node[:count]) != list(base.graph.node):
            raise self._refusal("changes the network; it may only add nodes")
        nodes = list(made.graph.node[count:])
        if any(True for item in nodes for _ in subgraphs(item)):
            raise self._refusal("must do without If, Loop and Scan")
        known = {tensor.name for tensor in base.graph.initializer}
        constants = [tensor for tensor in made.graph.initializer if tensor.name not in known]
        shape = _shape(made, loss)
        if shape is None or any(size != 1 for size in shape):
            told = "of unknown shape" if shape is None else f"of shape {shape}"
            raise self._refusal(f"must be one number, what it returns is {told}: reduce it by its mean")
        taken = {value.name for value in base.graph.input}
        labels = tuple(self._label(value) for value in made.graph.input if value.name not in taken)
        if not labels:
            raise self._refusal("takes no label: give it one with onnxblock.blocks.InputLike")
        return BuiltBlock(labels, tuple(nodes), tuple(constants), str(loss), not shape)

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
class BuiltBlock:
    """The nodes of a block, and the labels that they take; `flat` is whether the loss has no axes."""

    labels: tuple[Tensor, ...]
    added: tuple[onnx.NodeProto, ...]
    constants: tuple[onnx.TensorProto, ...]
    loss: str
    flat: bool

    def nodes(self, read: Mapping[str, str]) -> Nodes:
        """The nodes with names of their own; labels are read under the names in `read`."""
        own = {tensor.name: f"loss.{tensor.name}" for tensor in self.constants}
        own |= {name: f"loss.{name}" for item in self.added for name in item.output}
        names = {**own, **read, "": ""}
        made = [
            helper.make_node("Constant", [], [own[tensor.name]], name=own[tensor.name], value=tensor)
            for tensor in self.constants
        ]
        for i, item in enumerate(self.added):
            copy = onnx.NodeProto()
            copy.CopyFrom(item)
            copy.name = f"loss.node{i}"
            for values in (copy.input, copy.output):
                for j, name in enumerate(values):
                    values[j] = names.get(name, name)
            made.append(copy)
        whole = [names.get(self.loss, self.loss)]
        without_axes = (
            node("Identity", whole, OUTPUT) if self.flat else node("ReduceSum", whole, OUTPUT, keepdims=0)
        )
        return [*made, without_axes]


def _base(model: onnx.ModelProto, compared: Sequence[str]) -> onnx.ModelProto:
    """The model with these tensors as its outputs, so that the block can look up their shapes."""
    base = onnx.ModelProto()
    base.CopyFrom(onnx.shape_inference.infer_shapes(model))
    known = {value.name: value for value in (*base.graph.value_info, *base.graph.output)}
    wanted = [known[name] for name in compared]
    del base.graph.output[:]
    base.graph.output.extend(wanted)
    return base


def _shape(model: onnx.ModelProto, name: Any) -> list[int | str] | None:
    graph = onnx.shape_inference.infer_shapes(model).graph
    for value in (*graph.value_info, *graph.output):
        if value.name == name and value.type.tensor_type.HasField("shape"):
            return shape_of(value)
    return None


def _is_block(made: Any, blocks: Any) -> bool:
    kind = made if isinstance(made, type) else type(made)
    return issubclass(kind, blocks.Block) and not issubclass(kind, blocks.TrainingBlock)


def _module(source: str) -> ModuleType:
    place = source.rpartition(":")[0]
    try:
        with _from_here():
            return _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except Exception as problem:
        what = f"cannot be imported: {type(problem).__name__}: {ort.one_line(problem)}"
        raise ConfigError(what, where=place or source, remedy="such as losses.py:Huber") from problem


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
