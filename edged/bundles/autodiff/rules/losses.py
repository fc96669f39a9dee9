"""Losses in which every row has a weight, in place of the mean over the batch.

wᵢ are the weights of the rows, Σw their sum, by which all gradients of a step are scaled. A mean over the
rows, or a SoftmaxCrossEntropyLoss, becomes Σ wᵢ·lossᵢ/Σw; the loss of the whole step is that times Σw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from edged.bundles.autodiff.tape import Adjoint, Adjoints, Dims, Tape, backward, forward
from edged.bundles.graph.writer import attributes_of, untrainable
from edged.bundles.losses.named import SMALL

LEAST = 1e-30  # a batch in which no row counts is divided by this, and changes nothing
ROW_MEAN = "RowMean"
"""Operator that stands for a ReduceMean over the rows of a batch and all that is in them, see `mark`."""


def mark(nodes: Sequence[onnx.NodeProto], rows: str, dims: Mapping[str, Dims]) -> None:
    """Turn every mean over tensors with one entry per row, into one number, to a `ROW_MEAN`."""
    for node in nodes:
        if node.op_type == "ReduceMean":
            before, behind = dims.get(node.input[0], ()), dims.get(node.output[0], (0,))
            if before[:1] == (rows,) and all(size == 1 for size in behind):
                node.op_type = ROW_MEAN


def _mean_of_rows(rows: str, weights: str, node: onnx.NodeProto, t: Tape) -> None:
    """Σ wᵢ·rowᵢ/Σw in the shape of the node's output; Σ wᵢ·rowᵢ `(1, 1)` where it is the step's loss."""
    weighted = t.add("Gemm", [rows, weights], node.output[0] if node.output[0] == t.loss else "", transA=1)
    if node.output[0] != t.loss:
        mean = t.add("Div", [weighted, t.row_sum])
        t.add("Reshape", [mean, t.sizes(*(1 for _ in t.dims(node.output[0], node)))], node.output[0])


@forward(ROW_MEAN)
def row_mean_forward(node: onnx.NodeProto, t: Tape) -> None:
    """Σ wᵢ·lossᵢ/Σw, where lossᵢ is the mean over what belongs to row i."""
    each = node.input[0]
    axes = list(range(1, len(t.dims(each, node))))
    rows = t.add("ReduceMean", [each, t.sizes(*axes)], keepdims=1) if axes else each
    if len(axes) != 1:
        rows = t.add("Reshape", [rows, t.sizes(-1, 1)])
    _mean_of_rows(rows, t.row_weights, node, t)


@backward(ROW_MEAN)
def row_mean(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """wᵢ/k for each of the k numbers of row i; times ḡ/Σw unless it is the step's loss."""
    dims = t.dims(node.input[0], node)
    width = math.prod(size for size in dims[1:] if isinstance(size, int))
    if any(isinstance(size, str) for size in dims[1:]):
        raise untrainable(node, "the loss of a row must be of a fixed size")
    wide = (dims[0], *(1 for _ in dims[1:]))
    if node.output[0] == t.loss:
        return [t.scaled(Adjoint(_beside(t.row_weights, len(dims), t), wide), 1 / width)]
    share = t.scaled(Adjoint(_beside(t.row_shares, len(dims), t), wide), 1 / width)
    return [Adjoint(t.add("Mul", [share.name, t.add("Reshape", [gradients[0].name, t.sizes()])]), wide)]


def _beside(rows: str, rank: int, t: Tape) -> str:
    return t.add("Reshape", [rows, t.sizes(-1)]) if rank == 1 else t.beside(rows, rank)


@forward("SoftmaxCrossEntropyLoss")
def cross_entropy_forward(node: onnx.NodeProto, t: Tape) -> None:
    """−log pᵢ of the row's class, weighted; p is the softmax of the logits `(batch, classes)`.

    It is written out: stock onnxruntime has no kernel for the operator, and makes more nodes of it.
    """
    logits, label = node.input[:2]
    classes = t.dims(logits, node)[-1]
    if len(t.dims(logits, node)) != 2 or not isinstance(classes, int):
        raise untrainable(node, "only logits (batch, classes) are covered")
    if attributes_of(node).get("reduction", "mean") != "mean":
        raise untrainable(node, "it must be reduced by its mean")
    named = node.output[1] if len(node.output) > 1 else ""
    said = t.add("LogSoftmax", [logits], named, axis=-1)
    wanted = _minus_one_hot(label, classes, t)
    rows = t.add("ReduceSum", [t.add("Mul", [said, wanted]), t.sizes(1)], keepdims=1)
    weights = _weights_of_rows(node, t)
    t.saved[node.output[0]] = said, wanted, weights
    _mean_of_rows(rows, weights, node, t)


@backward("SoftmaxCrossEntropyLoss")
def cross_entropy(node: onnx.NodeProto, gradients: Sequence[Adjoint | None], t: Tape) -> Adjoints:
    """wᵢ·(p − onehot(labelᵢ)); times ḡ/Σw unless it is the step's loss.

    Weights of classes, and one that is ignored, are in wᵢ: see `_weights_of_rows`.
    """
    if gradients[0] is None or any(gradients[1:]):
        raise untrainable(node, "its log-probabilities are read")
    said, wanted, weights = t.saved[node.output[0]]
    excess = t.add("Add", [t.add("Exp", [said]), wanted])
    if node.output[0] != t.loss:
        factor = t.add("Div", [t.add("Reshape", [gradients[0].name, t.sizes()]), t.row_sum])
        weights = t.add("Mul", [weights, factor])
    return [Adjoint(t.add("Mul", [excess, weights]), t.dims(node.input[0], node))]


def _minus_one_hot(label: str, classes: int, t: Tape) -> str:
    """Rows of minus the identity matrix, faster than OneHot as long as the matrix is small."""
    if classes <= SMALL:
        return t.add("Gather", [t.constant(-np.eye(classes, dtype=np.float32)), label], axis=0)
    both = t.constant(np.array([0, -1], np.float32))
    return t.add("OneHot", [label, t.constant(np.int64(classes)), both], axis=-1)


def _weights_of_rows(node: onnx.NodeProto, t: Tape) -> str:
    """Tensor `(batch, 1)`: rᵢ·wᵢ·Σr/Σrw, how much each row of a weighted loss counts.

    r are the weights of the rows, w those of their classes, 0 for the one that is ignored. With equal r their
    weighted mean is the loss of the ONNX operator specification.
    """
    label, ignored = node.input[1], attributes_of(node).get("ignore_index")
    factors = [t.add("Gather", [weights, label], axis=0) for weights in node.input[2:3] if weights]
    if ignored is not None:
        same = t.add("Equal", [label, t.constant(np.int64(ignored))])
        factors.append(t.add("Where", [same, t.number(0), t.number(1)]))
    if not factors:
        return t.row_weights
    each = factors[0] if len(factors) == 1 else t.add("Mul", factors)
    counted = t.add("Mul", [t.add("Reshape", [each, t.sizes(-1, 1)]), t.row_weights])
    whole, part = (t.add("ReduceSum", [name], keepdims=1) for name in (t.row_weights, counted))
    ratio = t.add("Div", [whole, t.add("Max", [part, t.number(LEAST)])])
    return t.add("Mul", [counted, ratio])
