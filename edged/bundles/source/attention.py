"""Attention and rotary embeddings of opset 23 and later, written in older operators.

Vaswani et al. 2017, "Attention is all you need"; Su et al. 2021, "RoFormer". Definitions as in the ONNX
operator specification.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from edged.bundles.graph.writer import attributes_of, untrainable
from edged.bundles.source.known import WAITING, Informed

# What is added to the score of a key that is not attended to: with -inf a row without any key would be NaN,
# and so would be its gradient.
LOW = -1e30


def attention(node: onnx.NodeProto, to: Informed) -> None:
    """softmax(s·QKᵀ + mask)·V, the keys and values of a group of heads shared (Ainslie et al. 2023)."""
    given = attributes_of(node)
    q, k, v = (_by_heads(node, place, to) for place in range(3))
    sizes = [_sizes(node, place, to) for place in range(3)]
    past = _input(node, 4)
    before = to.shape(past, node)[2] if past else 0
    lengths = sizes[0][1], None if before is None or sizes[1][1] is None else before + sizes[1][1]
    k, v = (_with_past(node, place, tensor, to) for place, tensor in ((1, k), (2, v)))
    k, v = (_repeated(tensor, sizes[0][0], *sizes[place][::2], to) for place, tensor in ((1, k), (2, v)))
    scale = given.get("scale", 1 / math.sqrt(sizes[0][2]))
    scaled = to.add("Mul", [q, to.number(scale)])
    scores = [to.add("MatMul", [scaled, to.add("Transpose", [k], perm=[0, 1, 3, 2])])]
    scores.append(_capped(scores[0], given.get("softcap", 0.0), to))
    bias, may_be_empty = _bias(node, lengths, before, to)
    scores.append(to.add("Add", [scores[1], bias]) if bias else scores[1])
    weights = to.add("Softmax", [scores[2]], axis=-1)
    if may_be_empty:
        most = to.add("ReduceMax", [bias, to.sizes(-1)], keepdims=1)
        empty = to.add("Less", [most, to.number(LOW / 2)])
        weights = to.add("Where", [empty, to.number(0), weights])
    _results(node, to.add("MatMul", [weights, v]), [*scores, weights], bias, to)


def _results(node: onnx.NodeProto, result: str, stages: list[str], bias: str, to: Informed) -> None:
    """The outputs, but for the present keys and values; `stages` are the scores and weights on the way."""
    if len(to.shape(node.input[0], node)) == 3:
        rows = to.add("Transpose", [result], perm=[0, 2, 1, 3])
        to.add("Reshape", [rows, to.sizes(0, 0, -1)], node.output[0])
    else:
        to.add("Identity", [result], node.output[0])
    # An error names the node as the file does.
    to.nodes[-1].name = node.name
    if len(node.output) > 3 and node.output[3]:
        mode = attributes_of(node).get("qk_matmul_output_mode", 0)
        stage = stages[mode]
        if mode == 2 and bias:
            never = to.add("Less", [bias, to.number(LOW / 2)])
            stage = to.add("Where", [never, to.number(-math.inf), stage])
        to.add("Identity", [stage], node.output[3])


def _input(node: onnx.NodeProto, place: int) -> str:
    return str(node.input[place]) if place < len(node.input) else ""


def _sizes(node: onnx.NodeProto, place: int, to: Informed) -> tuple[int, int | None, int]:
    """Heads, length and size of a head of query, key or value; without what is past."""
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


def _with_past(node: onnx.NodeProto, place: int, tensor: str, to: Informed) -> str:
    """Keys or values behind those of the past, as the output that holds them where there is one."""
    past, present = _input(node, place + 3), node.output[place] if place < len(node.output) else ""
    if past:
        return to.add("Concat", [past, tensor], present, axis=2)
    return to.add("Identity", [tensor], present) if present else tensor


def _repeated(tensor: str, heads: int, own: int, width: int, to: Informed) -> str:
    """Keys or values with every head as often as there are query heads for it."""
    if heads == own:
        return tensor
    between = to.add("Unsqueeze", [tensor, to.sizes(2)])
    spread = to.add("Expand", [between, to.sizes(1, 1, heads // own, 1, 1)])
    return to.add("Reshape", [spread, to.sizes(0, heads, -1, width)])


def _capped(scores: str, cap: float, to: Informed) -> str:
    if not cap:
        return scores
    return to.add("Mul", [to.add("Tanh", [to.add("Div", [scores, to.number(cap)])]), to.number(cap)])


# ---- masks --------------------------------------------------------------------------------------


def _bias(
    node: onnx.NodeProto, lengths: tuple[int | None, int | None], past: int | None, to: Informed
) -> tuple[str, bool]:
    """What is added to the scores, nothing where all keys count; whether a row may be left without a key."""
    given, mask, valid = attributes_of(node), _input(node, 3), _input(node, 6)
    least = -given.get("right_window_size", -1) if given.get("right_window_size", -1) >= 0 else None
    most = given.get("left_window_size", -1) if given.get("left_window_size", -1) >= 0 else None
    if given.get("is_causal", 0):
        least = 0
    parts = [_mask(node, mask, lengths[1], to)] if mask else []
    if least is None and most is None and not valid:
        return (parts or [""])[0], bool(mask) and _may_hide_all(to.value(mask))
    queries, keys = lengths
    if queries is None or keys is None or past is None:
        raise untrainable(node, "the lengths of its sequences are not known")
    # How far before the query each key is.
    apart = np.arange(queries)[:, np.newaxis] - np.arange(keys)
    if valid:
        parts += _by_lengths(valid, apart, least, most, to)
    else:
        allowed = np.ones_like(apart, bool)
        allowed &= True if least is None else apart + past >= least
        allowed &= True if most is None else apart + past <= most
        parts.append(_constant(np.where(allowed, 0, LOW).astype(np.float32), to))
        if not mask:
            return parts[0], not allowed.any(axis=1).all()
    total = parts[0]
    for part in parts[1:]:
        total = to.add("Add", [total, part])
    return total, True


def _may_hide_all(mask: Any) -> bool:
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


def _by_lengths(
    valid: str, apart: np.ndarray, least: int | None, most: int | None, to: Informed
) -> list[str]:
    """What is added where every row has another number of keys, of which the queries are the last ones."""
    queries, keys = apart.shape
    count = to.add("Reshape", [valid, to.sizes(-1, 1, 1, 1)])
    distance = to.add("Add", [to.constant(apart - queries), count])
    kept = [to.add("Less", [to.constant(np.arange(keys)), count])]
    if least is not None:
        kept.append(to.add("GreaterOrEqual", [distance, to.constant(np.int64(least))]))
    if most is not None:
        kept.append(to.add("LessOrEqual", [distance, to.constant(np.int64(most))]))
    return [to.add("Where", [each, to.number(0), to.number(LOW)]) for each in kept]


def _constant(value: np.ndarray, to: Informed) -> str:
    # A Constant node and no initialiser, which would be a parameter.
    return to.add("Constant", [], value=numpy_helper.from_array(value))


# ---- rotary embedding -----------------------------------------------------------------------------


def rotary_embedding(node: onnx.NodeProto, to: Informed) -> None:
    """Pairs of values turned by an angle that grows with their place: (x·cos − y·sin, x·sin + y·cos)."""
    given, (x, cosine, sine) = attributes_of(node), node.input[:3]
    shape, apart = to.shape(x, node), len(to.shape(x, node)) == 4
    heads = given.get("num_heads", 0)
    width = shape[-1] if apart else shape[-1] and heads and shape[-1] // heads
    if not width:
        raise untrainable(node, "the size of its heads is not known")
    if not apart:
        x = to.add("Reshape", [x, to.sizes(0, 0, heads, width)])
    turned = given.get("rotary_embedding_dim", 0) or width
    step = 2 if given.get("interleaved", 0) else 1
    begin, end = ((0, turned), (1, turned)) if step == 2 else ((0, turned // 2), (turned // 2, turned))
    first, second = (_cut(x, *bounds, step, to) for bounds in (begin, end))
    angles = []
    for table in (cosine, sine):
        rows = to.add("Gather", [table, node.input[3]], axis=0) if _input(node, 3) else table
        angles.append(to.add("Unsqueeze", [rows, to.sizes(1 if apart else 2)]))
    real, imaginary = (
        to.add(sign, [to.add("Mul", [first, one]), to.add("Mul", [second, other])])
        for sign, one, other in (("Sub", *angles), ("Add", *angles[::-1]))
    )
    if step == 2:
        pairs = [to.add("Unsqueeze", [part, to.sizes(-1)]) for part in (real, imaginary)]
        parts = [to.add("Reshape", [to.add("Concat", pairs, axis=-1), to.sizes(0, 0, 0, -1)])]
    else:
        parts = [real, imaginary]
    if turned < width:
        parts.append(_cut(x, turned, width, 1, to))
    if apart:
        to.add("Concat", parts, node.output[0], axis=-1)
    else:
        to.add("Reshape", [to.add("Concat", parts, axis=-1), to.sizes(0, 0, -1)], node.output[0])
    to.nodes[-1].name = node.name


def _cut(x: str, start: int, end: int, step: int, to: Informed) -> str:
    return to.add("Slice", [x, *(to.sizes(number) for number in (start, end, -1, step))])
