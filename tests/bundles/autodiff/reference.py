"""Operators in numpy and double precision, where ONNX's own reference implementation is wrong or rounds.

Definitions as in the ONNX operator specification, written as plainly as can be.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx.reference.op_run import OpRun

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


def _at(*parts: Any) -> Any:
    """An index of several parts; Python 3.10 takes no star between brackets."""
    return parts


class Erf(OpRun):  # type: ignore[misc]
    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.vectorize(math.erf, otypes=[x.dtype])(x),)


class Mean(OpRun):  # type: ignore[misc]
    op_domain = ""

    def _run(self, *operands: Array) -> tuple[Array]:
        return (np.asarray(sum(operands) / len(operands)),)


class LayerNormalization(OpRun):  # type: ignore[misc]
    op_domain = ""

    def _run(
        self,
        x: Array,
        scale: Array,
        bias: Array | None = None,
        axis: int = -1,
        epsilon: float = 1e-5,
        stash_type: int = 1,
    ) -> tuple[Array, ...]:
        axes = tuple(range(axis % x.ndim, x.ndim))
        mean = x.mean(axes, keepdims=True)
        inverse = 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + epsilon)
        return ((x - mean) * inverse * scale + (0 if bias is None else bias), mean, inverse)


class GlobalMaxPool(OpRun):  # type: ignore[misc]
    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


def _geometry(
    shape: tuple[int, ...], kernel: list[int], given: dict[str, Any]
) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """Strides, dilations, padding in front and behind, and sizes of the output."""
    rank, auto = len(kernel), given["auto_pad"] or "NOTSET"
    strides, dilations = (list(given[key] or [1] * rank) for key in ("strides", "dilations"))
    extents = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    pads = list(given["pads"] or [0] * 2 * rank)
    begin, end, out = pads[:rank], pads[rank:], []
    for i in range(rank):
        if auto.startswith("SAME"):
            out.append(-(-shape[i] // strides[i]))
            total = max((out[i] - 1) * strides[i] + extents[i] - shape[i], 0)
            begin[i] = total // 2 if auto == "SAME_UPPER" else total - total // 2
            end[i] = total - begin[i]
            continue
        if auto == "VALID":
            begin[i] = end[i] = 0
        rest = shape[i] + begin[i] + end[i] - extents[i]
        out.append(rest // strides[i] + 1)
        if given["ceil_mode"] and rest % strides[i] and out[i] * strides[i] < shape[i] + begin[i]:
            out[i] += 1
    return strides, dilations, begin, end, out


def _pool(x: Array, kernel: list[int], given: dict[str, Any], reduce: Callable[[Array, int], Any]) -> Array:
    """For every window, what `reduce` makes of its values `(N, C, taps)` and of its size with padding."""
    strides, dilations, begin, end, out = _geometry(x.shape[2:], kernel, given)
    result = np.zeros((*x.shape[:2], *out), x.dtype)
    for at in itertools.product(*map(range, out)):
        corner = [a * s - b for a, s, b in zip(at, strides, begin, strict=True)]
        taps = list(_taps(kernel, dilations, corner))
        inside = [t for t in taps if all(0 <= i < n for i, n in zip(t, x.shape[2:], strict=True))]
        # Of windows that ceil_mode adds, only what lies in the padding that was asked for counts.
        padded = [
            t
            for t in taps
            if all(-b <= i < n + e for i, b, n, e in zip(t, begin, x.shape[2:], end, strict=True))
        ]
        values = np.stack([x[_at(slice(None), slice(None), *t)] for t in inside], axis=-1)
        result[_at(slice(None), slice(None), *at)] = reduce(values, len(padded))
    return result


def _taps(kernel: list[int], dilations: list[int], corner: list[int]) -> Iterator[tuple[int, ...]]:
    for tap in itertools.product(*map(range, kernel)):
        yield tuple(c + t * d for c, t, d in zip(corner, tap, dilations, strict=True))


class MaxPool(OpRun):  # type: ignore[misc]
    op_domain = ""

    def _run(
        self,
        x: Array,
        auto_pad: Any = None,
        ceil_mode: int = 0,
        dilations: Any = None,
        kernel_shape: Any = None,
        pads: Any = None,
        storage_order: int = 0,
        strides: Any = None,
    ) -> tuple[Array]:
        given = {"auto_pad": auto_pad, "ceil_mode": ceil_mode, "dilations": dilations, "pads": pads}
        given["strides"] = strides
        return (_pool(x, list(kernel_shape), given, lambda values, _: values.max(axis=-1)),)


class AveragePool(OpRun):  # type: ignore[misc]
    op_domain = ""

    def _run(
        self,
        x: Array,
        auto_pad: Any = None,
        ceil_mode: int = 0,
        count_include_pad: int = 0,
        dilations: Any = None,
        kernel_shape: Any = None,
        pads: Any = None,
        strides: Any = None,
    ) -> tuple[Array]:
        given = {"auto_pad": auto_pad, "ceil_mode": ceil_mode, "dilations": dilations, "pads": pads}
        given["strides"] = strides

        def mean(values: Array, size: int) -> Array:
            total: Array = values.sum(axis=-1)
            return total / (size if count_include_pad else values.shape[-1])

        return (_pool(x, list(kernel_shape), given, mean),)


class Conv(OpRun):  # type: ignore[misc]
    op_domain = ""

    def _run(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        auto_pad: Any = None,
        dilations: Any = None,
        group: int = 1,
        kernel_shape: Any = None,
        pads: Any = None,
        strides: Any = None,
    ) -> tuple[Array]:
        given = {"auto_pad": auto_pad, "ceil_mode": 0, "dilations": dilations, "pads": pads}
        given["strides"] = strides
        rank, kernel = x.ndim - 2, list(w.shape[2:])
        steps, wide, begin, end, out = _geometry(x.shape[2:], kernel, given)
        padded = np.pad(x, [(0, 0), (0, 0), *zip(begin, end, strict=True)])
        result = np.zeros((x.shape[0], w.shape[0], *out), x.dtype)
        each, filters = x.shape[1] // group, w.shape[0] // group
        for tap in itertools.product(*map(range, kernel)):
            cut = tuple(
                slice(t * d, t * d + (o - 1) * s + 1, s)
                for t, d, o, s in zip(tap, wide, out, steps, strict=True)
            )
            part = padded[_at(slice(None), slice(None), *cut)]
            for g in range(group):
                weights = w[_at(slice(g * filters, (g + 1) * filters), slice(None), *tap)]
                result[:, g * filters : (g + 1) * filters] += np.moveaxis(
                    np.tensordot(weights, part[:, g * each : (g + 1) * each], (1, 1)), 0, 1
                )
        if b is not None:
            result += b.reshape(-1, *[1] * rank)
        return (result,)


class ConvTranspose(OpRun):  # type: ignore[misc]
    op_domain = ""

    def _run(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        auto_pad: Any = None,
        dilations: Any = None,
        group: int = 1,
        kernel_shape: Any = None,
        output_padding: Any = None,
        output_shape: Any = None,
        pads: Any = None,
        strides: Any = None,
    ) -> tuple[Array]:
        rank, kernel, auto = x.ndim - 2, w.shape[2:], auto_pad or "NOTSET"
        steps, wide = list(strides or [1] * rank), list(dilations or [1] * rank)
        more, around = list(output_padding or [0] * rank), list(pads or [0] * 2 * rank)
        whole = [
            (n - 1) * s + d * (k - 1) + 1 + m
            for n, s, d, k, m in zip(x.shape[2:], steps, wide, kernel, more, strict=True)
        ]
        if output_shape or auto.startswith("SAME"):
            reached = list(output_shape or [n * s for n, s in zip(x.shape[2:], steps, strict=True)])[-rank:]
            total = [max(n - r, 0) for n, r in zip(whole, reached, strict=True)]
            less = [n // 2 for n in total]
            rest = [n - n // 2 for n in total]
            around = [*less, *rest] if auto == "SAME_UPPER" else [*rest, *less]
        each, filters = x.shape[1] // group, w.shape[1]
        result = np.zeros((x.shape[0], filters * group, *whole), x.dtype)
        for at in itertools.product(*map(range, x.shape[2:])):
            for tap in itertools.product(*map(range, kernel)):
                place = tuple(a * s + t * d for a, s, t, d in zip(at, steps, tap, wide, strict=True))
                for g in range(group):
                    part = x[_at(slice(None), slice(g * each, (g + 1) * each), *at)]
                    weights = w[_at(slice(g * each, (g + 1) * each), slice(None), *tap)]
                    result[_at(slice(None), slice(g * filters, (g + 1) * filters), *place)] += part @ weights
        cut = tuple(slice(a, n - e) for a, n, e in zip(around[:rank], whole, around[rank:], strict=True))
        result = result[_at(slice(None), slice(None), *cut)]
        return (result if b is None else result + b.reshape(-1, *[1] * rank),)


class Resize(OpRun):  # type: ignore[misc]
    op_domain = ""

    def _run(
        self,
        x: Array,
        _roi: Array | None = None,
        scales: Array | None = None,
        sizes: Array | None = None,
        coordinate_transformation_mode: str = "half_pixel",
        mode: str = "nearest",
        nearest_mode: str = "round_prefer_floor",
        **_: Any,
    ) -> tuple[Array]:
        given = scales is not None and scales.size > 0
        for axis, few in enumerate(x.shape):
            scale = np.float32(scales[axis]) if given and scales is not None else None
            many = int(np.floor(few * scale)) if scale is not None else int(sizes[axis])  # type: ignore[index]
            stretched = np.float32(many / few) if scale is None else scale
            if many == few and stretched == 1:
                continue
            parts = []
            for place in map(np.float32, range(many)):
                at = (place + np.float32(0.5)) / stretched - np.float32(0.5)
                if coordinate_transformation_mode == "align_corners":
                    at = place * np.float32(few - 1) / np.float32(max(many - 1, 1))
                elif coordinate_transformation_mode == "asymmetric":
                    at = place / stretched
                elif coordinate_transformation_mode == "pytorch_half_pixel" and many == 1:
                    at = np.float32(0)
                parts.append(_interpolated(x, axis, float(at), mode, nearest_mode))
            x = np.stack(parts, axis=axis)
        return (x,)


def _interpolated(x: Array, axis: int, at: float, mode: str, rounding: str) -> Array:
    last = x.shape[axis] - 1
    if mode == "linear":
        at = min(max(at, 0), last)
        low = math.floor(at)
        share = at - low
        return np.asarray((1 - share) * np.take(x, low, axis) + share * np.take(x, min(low + 1, last), axis))
    low, high = math.floor(at), math.ceil(at)
    near = {"floor": low, "ceil": high}.get(rounding, low if at - low < high - at else high)
    if low != high and at - low == high - at and rounding.startswith("round"):
        near = low if rounding == "round_prefer_floor" else high
    return np.asarray(np.take(x, min(max(near, 0), last), axis))


def _squashed(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _recurrent(
    inputs: list[Array | None], states: int, hidden: int, direction: str, layout: int, step: Any
) -> tuple[Array, ...]:
    """All states, and the last ones, of a layer whose `step` goes from one to the next."""
    x, w, r, b, _, *first = [*inputs, *[None] * 8][: 5 + states]
    assert x is not None and w is not None and r is not None  # noqa: PT018
    if layout:
        x = x.swapaxes(0, 1)
        first = [None if one is None else one.swapaxes(0, 1) for one in first]
    every, last = [], []
    for number, back in enumerate({"forward": [0], "reverse": [1], "bidirectional": [0, 1]}[direction]):
        now = [np.zeros((x.shape[1], hidden)) if one is None else one[number] for one in first]
        bias = np.zeros(2 * w.shape[1]) if b is None else b[number]
        of_input, of_state = np.split(bias, 2)
        found = []
        for values in x[::-1] if back else x:
            now = step(values, now, (w[number], r[number], of_input, of_state))
            found.append(now[0])
        every.append(np.stack(found[::-1] if back else found))
        last.append(now)
    outputs = [np.stack(every, axis=1), *(np.stack(each) for each in zip(*last, strict=True))]
    if layout:
        outputs = [outputs[0].transpose(2, 0, 1, 3), *(each.swapaxes(0, 1) for each in outputs[1:])]
    return tuple(outputs)


class LSTM(OpRun):  # type: ignore[misc]
    op_domain = ""

    def _run(
        self,
        *inputs: Array | None,
        hidden_size: int = 0,
        direction: Any = "forward",
        layout: int = 0,
        **_: Any,
    ) -> tuple[Array, ...]:
        def step(x: Array, states: list[Array], weights: tuple[Array, ...]) -> list[Array]:
            w, r, of_input, of_state = weights
            gates = np.split(x @ w.T + states[0] @ r.T + of_input + of_state, 4, axis=1)
            i, o, f = map(_squashed, gates[:3])
            c = f * states[1] + i * np.tanh(gates[3])
            return [o * np.tanh(c), c]

        return _recurrent(list(inputs), 2, hidden_size, direction or "forward", layout or 0, step)


class GRU(OpRun):  # type: ignore[misc]
    op_domain = ""

    def _run(
        self,
        *inputs: Array | None,
        hidden_size: int = 0,
        direction: Any = "forward",
        layout: int = 0,
        linear_before_reset: int = 0,
        **_: Any,
    ) -> tuple[Array, ...]:
        def step(x: Array, states: list[Array], weights: tuple[Array, ...]) -> list[Array]:
            (w_z, w_r, w_n), (r_z, r_r, r_n) = (np.split(matrix, 3) for matrix in weights[:2])
            (i_z, i_r, i_n), (s_z, s_r, s_n) = (np.split(bias, 3) for bias in weights[2:])
            (h,) = states
            z = _squashed(x @ w_z.T + h @ r_z.T + i_z + s_z)
            r = _squashed(x @ w_r.T + h @ r_r.T + i_r + s_r)
            of_state = r * (h @ r_n.T + s_n) if linear_before_reset else (r * h) @ r_n.T + s_n
            return [(1 - z) * np.tanh(x @ w_n.T + i_n + of_state) + z * h]

        return _recurrent(list(inputs), 1, hidden_size, direction or "forward", layout or 0, step)


class RNN(OpRun):  # type: ignore[misc]
    op_domain = ""

    def _run(
        self,
        *inputs: Array | None,
        hidden_size: int = 0,
        direction: Any = "forward",
        layout: int = 0,
        activations: Any = None,
        **_: Any,
    ) -> tuple[Array, ...]:
        def step(x: Array, states: list[Array], weights: tuple[Array, ...]) -> list[Array]:
            w, r, of_input, of_state = weights
            whole = x @ w.T + states[0] @ r.T + of_input + of_state
            return [np.maximum(whole, 0) if activations and activations[0] == "Relu" else np.tanh(whole)]

        return _recurrent(list(inputs), 1, hidden_size, direction or "forward", layout or 0, step)


OPERATORS: list[type[OpRun]] = [
    AveragePool, Conv, ConvTranspose, Erf, GRU, GlobalMaxPool, LSTM, LayerNormalization,
    MaxPool, Mean, RNN, Resize,
]  # fmt: skip
