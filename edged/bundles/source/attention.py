"""Attention of opset 23 and later, written in older operators.

Vaswani et al. 2017, "Attention is all you need". Definition as in the ONNX operator specification.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from edged.bundles.graph.writer import attributes_of, constant_node, untrainable
from edged.bundles.source.known import WAITING, Informed

# What is added to the score of a key that is not attended to: with -inf a row without any key would be NaN,
# and so would be its gradient.
LOW = -1e30


def attention(node: onnx.NodeProto, to: Informed) -> None:
    """softmax(s·QKᵀ + mask)·V, the keys and values of a group of heads shared (Ainslie et al. 2023)."""
    _refuse_inference(node)
    given = attributes_of(node)
    q, k, v = (_by_heads(node, place, to) for place in range(3))
    (heads, queries, width), (own, keys, _), (_, _, wide) = (_sizes(node, place, to) for place in range(3))
    k, v = _repeated(k, heads, own, width, to), _repeated(v, heads, own, wide, to)
    scaled = to.add("Mul", [q, to.number(given.get("scale", 1 / math.sqrt(width)))])
    scores = to.add("MatMul", [scaled, to.add("Transpose", [k], perm=[0, 1, 3, 2])])
    if cap := given.get("softcap", 0.0):
        scores = to.add("Mul", [to.add("Tanh", [to.add("Div", [scores, to.number(cap)])]), to.number(cap)])
    bias, may_be_empty = _bias(node, queries, keys, to)
    weights = to.add("Softmax", [to.add("Add", [scores, bias]) if bias else scores], axis=-1)
    if may_be_empty:
        most = to.add("ReduceMax", [bias, to.sizes(-1)], keepdims=1)
        empty = to.add("Less", [most, to.number(LOW / 2)])
        weights = to.add("Where", [empty, to.number(0), weights])
    result = to.add("MatMul", [weights, v])
    if len(to.shape(node.input[0], node)) == 3:
        rows = to.add("Transpose", [result], perm=[0, 2, 1, 3])
        to.add("Reshape", [rows, to.sizes(0, 0, -1)], node.output[0])
    else:
        to.add("Identity", [result], node.output[0])
    # An error names the node as the file does.
    to.nodes[-1].name = node.name


def _refuse_inference(node: onnx.NodeProto) -> None:
    """Raise BundleError for the forms of Attention that generate text step by step."""
    given = attributes_of(node)
    if any(node.input[4:6]) or any(node.output[1:3]):
        raise untrainable(node, "it has a cache of keys and values", "export it without one: use_cache=False")
    if any(node.input[6:]):
        raise untrainable(node, "its keys have lengths of their own", "give it a mask instead")
    if max(given.get("left_window_size", -1), given.get("right_window_size", -1)) >= 0:
        raise untrainable(node, "it has a local window", "give it a mask instead")
    if any(node.output[3:]):
        raise untrainable(node, "its scores are an output", "export it without")


def _input(node: onnx.NodeProto, place: int) -> str:
    return str(node.input[place]) if place < len(node.input) else ""


def _sizes(node: onnx.NodeProto, place: int, to: Informed) -> tuple[int, int | None, int]:
    """Heads, length and size of a head of query, key or value."""
    shape = to.shape(node.input[place], node)
    if len(shape) == 4:
        heads, length, width = shape[1:]
    else:
        heads, length = attributes_of(node).get("kv_num_heads" if place else "q_num_heads"), shape[1]
        width = shape[2] and heads and shape[2] // heads
    if not heads or not width:
        raise untrainable(node, "the number of its heads or their size is not known")
    return heads, length, width


def _by_heads(node: onnx.NodeProto, place: int, to: Informed) -> str:
    """Query, key or value as `(batch, heads, length, size)`."""
    name = node.input[place]
    if len(to.shape(name, node)) == 4:
        return str(name)
    parted = to.add("Reshape", [name, to.sizes(0, 0, _sizes(node, place, to)[0], -1)])
    return to.add("Transpose", [parted], perm=[0, 2, 1, 3])


def _repeated(tensor: str, heads: int, own: int, width: int, to: Informed) -> str:
    """Keys or values with every head as often as there are query heads for it."""
    if heads == own:
        return tensor
    between = to.add("Unsqueeze", [tensor, to.sizes(2)])
    spread = to.add("Expand", [between, to.sizes(1, 1, heads // own, 1, 1)])
    return to.add("Reshape", [spread, to.sizes(0, heads, -1, width)])


def _bias(node: onnx.NodeProto, queries: int | None, keys: int | None, to: Informed) -> tuple[str, bool]:
    """What is added to the scores, nothing where all keys count; whether a row may be left without a key."""
    name = _input(node, 3)
    mask = _mask(node, name, keys, to) if name else ""
    if not attributes_of(node).get("is_causal", 0):
        return mask, bool(name) and _may_hide_all(to.value(name))
    if queries is None or keys is None:
        raise untrainable(node, "the lengths of its sequences are not known")
    allowed = np.tri(queries, keys, dtype=bool)
    causal = constant_node(to.name("causal"), np.where(allowed, 0, LOW).astype(np.float32))
    to.copy(causal)
    before = str(causal.output[0])
    return (to.add("Add", [mask, before]), True) if mask else (before, False)


def _may_hide_all(mask: NDArray[Any] | None) -> bool:
    return mask is None or not mask.any(axis=-1).all()


def _mask(node: onnx.NodeProto, mask: str, keys: int | None, to: Informed) -> str:
    """A mask as what is added; keys that it says nothing of are not attended to."""
    shape = to.shape(mask, node)
    if to.kind(mask) == TensorProto.BOOL:
        added = to.add("Where", [mask, to.number(0), to.number(LOW)])
    else:
        added = to.add("Max", [mask, to.number(LOW)])
    missing = (keys or 0) - (shape[-1] or 0)
    if not keys or not shape[-1] or missing <= 0:
        return added
    amounts = [*[0] * (2 * len(shape) - 1), missing]
    return to.add("Pad", [added, to.sizes(*amounts), to.number(LOW)], domain=WAITING)
