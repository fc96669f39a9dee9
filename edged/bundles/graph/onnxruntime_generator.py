"""Calling onnxruntime's own artifact generator, and correcting what it leaves behind.

Corrections: file versions newer than the runtime reads, names that depend on earlier calls in the same
process, and a logger that is left at INFO.
"""

from __future__ import annotations

import copy
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edged.bundles.autodiff.rules.recurrent import STATES
from edged.bundles.graph.edit import opset_of
from edged.bundles.graph.writer import NodeWriter, constant_node
from edged.domain.training.optimizers import EPSILON, Optimizer
from edged.engines.native import api
from edged.engines.runtime import ort
from edged.engines.runtime.ort import onnxruntime
from edged.errors import BundleError

MAX_IR_VERSION = 10
TRAINING, EVALUATION, OPTIMIZER = "training_model.onnx", "eval_model.onnx", "optimizer_model.onnx"
CHECKPOINT = "checkpoint"
FILES = (TRAINING, EVALUATION, OPTIMIZER, CHECKPOINT)
# The two forms of AdamW: attribute adam_mode of onnxruntime's operator.
_ADAM_MODES = {"adamw": 1, "adamw_pytorch": 0}

_ERROR_SEVERITY = 3


def generate(
    model: onnx.ModelProto,
    *,
    trainable: Sequence[str],
    frozen: Sequence[str],
    optimizer: Optimizer,
    out: Path,
) -> None:
    """Write the training, evaluation and optimizer graphs for `model` into directory `out`.

    The model's only output is the loss. They are those of upstream's `generate_artifacts`, made from the
    same blocks, but no value of a parameter passes through: models may be larger than a message.
    Of an optimizer that upstream has not, the optimizer's file is that of plain SGD.

    Raises UnavailableError where onnxruntime-training is not installed; BundleError when it makes no graphs.
    """
    blocks = api.load("onnxblock")
    prepare_blocks()
    given = _without_values(model, {*trainable, *frozen})
    _write_out(given.graph)
    try:
        with _quiet():
            block = _training_block(blocks, trainable, frozen)
            with blocks.base(given):
                block(*(output.name for output in given.graph.output))
            training, evaluation = block.to_model_proto()
            with blocks.empty_base(opset_version=opset_of(model)):
                update = _block(optimizer)
                update(([onnx.TensorProto(data_type=onnx.TensorProto.FLOAT)], []))
    except (*ort.ERRORS, onnx.checker.ValidationError) as problem:
        raise _refusal(model, problem) from problem
    for made, name in ((training, TRAINING), (evaluation, EVALUATION), (update.to_model_proto(), OPTIMIZER)):
        onnx.save(made, str(out / name))
        make_readable(out / name)
    if optimizer.adaptive:
        _set_mode(out / OPTIMIZER, _ADAM_MODES[optimizer.name])


def _training_block(blocks: Any, trainable: Sequence[str], frozen: Sequence[str]) -> Any:
    class Whole(blocks.TrainingBlock):  # type: ignore[misc]  # untyped, and only here at run time
        def build(self, loss: str) -> Any:
            return blocks.blocks.PassThrough()(loss)

    block = Whole()
    for name in trainable:
        block.requires_grad(name)
    for name in frozen:
        block.requires_grad(name, False)
    return block


def _without_values(model: onnx.ModelProto, names: set[str]) -> onnx.ModelProto:
    """The model with these initializers as inputs, which upstream would make of them."""
    made = copy.deepcopy(model)
    graph = made.graph
    kept = [tensor for tensor in graph.initializer if tensor.name not in names]
    for tensor in graph.initializer:
        if tensor.name in names:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return made


def _write_out(graph: onnx.GraphProto) -> None:
    """Write out what kernels of gradients read: zeros that layers begin with, logarithms of classes."""
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        if node.op_type == "SoftmaxCrossEntropyLoss" and len(node.output) == 1:
            node.output.append(f"{node.name}.log_prob")
        for place in range(5, 5 + STATES.get(node.op_type, 0)):
            node.input.extend([""] * (place + 1 - len(node.input)))
            if not node.input[place]:
                node.input[place] = f"{node.name}.state{place}"
                graph.node.extend(_zeros(node, node.input[place]))
        graph.node.append(node)


def _zeros(node: onnx.NodeProto, name: str) -> list[onnx.NodeProto]:
    hidden = next(item.i for item in node.attribute if item.name == "hidden_size")
    to, zero = NodeWriter(), numpy_helper.from_array(np.zeros(1, np.float32))
    for part, size in (("direction", 1), ("hidden", hidden)):
        to.copy(constant_node(f"{name}.{part}", np.array([size], np.int64)))
    to.add("Shape", [node.input[0]], f"{name}.rows", start=1, end=2)
    sides = [f"{name}.{part}" for part in ("direction", "rows", "hidden")]
    to.add("ConstantOfShape", [to.add("Concat", sides, f"{name}.shape", axis=0)], name, value=zero)
    return to.nodes


def _block(optimizer: Optimizer) -> Any:
    made = api.load("onnxblock.optim")
    clip = made.ClipGradNorm(optimizer.clip_norm) if optimizer.clip_norm else None
    if not optimizer.adaptive:
        return made.SGD(clip_grad=clip)
    return made.AdamW(
        betas=(0.9, 0.999),
        eps=EPSILON[optimizer.name],
        weight_decay=optimizer.weight_decay,
        clip_grad=clip,
    )


def _set_mode(path: Path, mode: int) -> None:
    """The generator writes Hugging Face's form alone, the operator has PyTorch's too."""
    model = onnx.load(str(path))
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "adam_mode":
                attribute.i = mode
    onnx.save(model, str(path))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the generator's messages off stderr: it logs at INFO past every setting and leaves it so.

    They are written by native code, so it is the file descriptor that has to be turned away; what went
    wrong is raised besides being logged.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        onnxruntime.set_default_logger_severity(_ERROR_SEVERITY)


def make_readable(path: Path) -> int | None:
    """Lower the IR version of a file where it is too new for the runtime; the version it had, then.

    Operator domains that no node uses are left out too.
    """
    model = onnx.load(str(path))
    old = int(model.ir_version)
    used = {node.domain for node in model.graph.node} | {""}
    kept = [entry for entry in model.opset_import if entry.domain in used]
    if old <= MAX_IR_VERSION and len(kept) == len(model.opset_import):
        return None
    model.ir_version = min(old, MAX_IR_VERSION)
    del model.opset_import[:]
    model.opset_import.extend(kept)
    onnx.save(model, str(path))
    return old if old > MAX_IR_VERSION else None


def prepare_blocks() -> None:
    """Keep upstream's blocks from depending on what was built before, and from removing files.

    Names of generated tensors end in a number that counts on for the life of the process. And a block that
    is no longer needed removes `temp.onnx` from the working directory, whoever has written it.
    """
    vars(api.load("onnxblock._graph_utils"))["_GRAPH_TOKEN"] = 0
    block = api.load("onnxblock.blocks").Block
    if "__del__" in vars(block):
        del block.__del__


def _refusal(model: onnx.ModelProto, problem: Exception) -> BundleError:
    text = ort.one_line(problem)
    names = _blamed(model.graph, text)
    return BundleError(
        f"the artifacts cannot be generated: {text}",
        where=", ".join(names[:3]) or str(model.graph.name),
        remedy="freeze what is before it, or build with --engine portable",
    )


def _blamed(graph: onnx.GraphProto, text: str) -> list[str]:
    """The nodes that a message of the generator is about, with their operators.

    It names nodes by the gradient nodes made of them, or an operator, or neither.
    """
    words = set(re.findall(r"\w+", text))
    found = [node for node in graph.node if f"{node.name}_Grad" in text]
    found = found or [node for node in graph.node if node.op_type in words]
    return [f"node {node.name} ({node.op_type})" for node in found]
