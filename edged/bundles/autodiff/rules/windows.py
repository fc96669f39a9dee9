"""Where the windows of a convolution or pooling lie on its input."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from edged.bundles.autodiff.tape import Dim
from edged.bundles.graph.writer import NodeWriter, attributes_of, untrainable

# Rows up to this length are copied faster when they are joined: a tenth to a fifth of the time of a filter
# gradient at 14 columns, none at 28 and 16 rows or more.
SHORT = 24


@dataclass(frozen=True)
class Windows:
    """Geometry of a sliding window; every tuple has an entry for each spatial axis.

    The window with index o covers, at its tap t, position o·stride + t·dilation − begin of the input
    (ONNX operator specification, Conv and MaxPool).
    """

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.sizes)

    @property
    def area(self) -> int:
        """Number of taps in the window."""
        return math.prod(self.kernel)

    @property
    def padded(self) -> bool:
        """Whether a window reaches beyond the input, on a side that counts as padding."""
        return any(self.begin) or any(self.end)

    @property
    def disjoint(self) -> bool:
        """Whether no two windows share a position."""
        return all(s >= e for s, e in zip(self.strides, self.extents, strict=True))

    @property
    def extents(self) -> tuple[int, ...]:
        """From the first to the last position that a window covers."""
        return tuple(d * (k - 1) + 1 for d, k in zip(self.dilations, self.kernel, strict=True))

    @property
    def short(self) -> bool:
        """Whether windows lie at every position of short rows, so that joining the rows is worth while."""
        dense = self.rank == 2 and set(self.strides) == {1} and self.area > 1
        return dense and self.out[1] == self.sizes[1] <= SHORT

    @property
    def taps(self) -> Iterator[tuple[int, ...]]:
        """Every tap, the last axis running fastest."""
        return itertools.product(*(range(k) for k in self.kernel))

    @property
    def remainder(self) -> tuple[int, ...]:
        """Positions of the padded input behind the last window."""
        there = zip(self.sizes, self.begin, self.end, self.out, self.strides, self.extents, strict=True)
        return tuple(size + b + e - (o - 1) * s - extent for size, b, e, o, s, extent in there)

    @classmethod
    def of(cls, node: onnx.NodeProto, sizes: Sequence[Dim], kernel: tuple[int, ...]) -> Windows:
        """The windows of `node` with this kernel on an input with these spatial sizes.

        Padding that the operator chooses (`auto_pad`), and windows that reach beyond it (`ceil_mode`), become
        plain padding.

        Raises BundleError when a size varies.
        """
        fixed, given = _fixed(node, sizes), attributes_of(node)
        ones = [1] * len(kernel)
        strides, dilations = (tuple(given.get(key, ones)) for key in ("strides", "dilations"))
        begin, end = _padding(node, fixed, kernel, strides, dilations)
        bare = cls(fixed, kernel, strides, dilations, begin, end, (1,) * len(kernel))
        out = tuple(rest // s + 1 for rest, s in zip(bare.remainder, strides, strict=True))
        if given.get("ceil_mode", 0):
            more = [_more(*of) for of in zip(bare.remainder, strides, out, fixed, begin, strict=True)]
            end = tuple(e + m for e, m in zip(end, more, strict=True))
            out = tuple(o + bool(m) for o, m in zip(out, more, strict=True))
        return cls(fixed, kernel, strides, dilations, begin, end, out)

    @classmethod
    def reached(
        cls, node: onnx.NodeProto, out: Sequence[Dim], kernel: tuple[int, ...], sizes: Sequence[Dim]
    ) -> Windows:
        """The windows from which a transposed convolution from `out` to `sizes` is made."""
        from_, to = _fixed(node, out), _fixed(node, sizes)
        given, ones = attributes_of(node), [1] * len(kernel)
        strides, dilations = (tuple(given.get(key, ones)) for key in ("strides", "dilations"))
        if given.get("auto_pad", "NOTSET") not in ("NOTSET", "", "VALID") or "output_shape" in given:
            raise untrainable(node, "its padding follows from its output: export it with pads")
        begin, end = _padding(node, to, kernel, strides, dilations)
        made = cls(to, kernel, strides, dilations, begin, end, from_)
        if any(rest >= stride for rest, stride in zip(made.remainder, strides, strict=True)):
            raise untrainable(node, "its output_padding is not less than its stride")
        return made


def _fixed(node: onnx.NodeProto, sizes: Sequence[Dim]) -> tuple[int, ...]:
    fixed = tuple(size for size in sizes if isinstance(size, int))
    if len(fixed) < len(sizes):
        raise untrainable(node, "only the batch may vary in size, not the axes that it slides along")
    return fixed


def _more(rest: int, stride: int, out: int, size: int, begin: int) -> int:
    """How much padding makes room for one window more; none where it would begin behind the input."""
    return stride - rest % stride if rest % stride and out * stride < size + begin else 0


def _padding(
    node: onnx.NodeProto,
    sizes: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    given, rank = attributes_of(node), len(kernel)
    automatic = given.get("auto_pad", "NOTSET")
    if automatic.startswith("SAME"):
        geometry = zip(sizes, kernel, strides, dilations, strict=True)
        whole = [max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0) for n, k, s, d in geometry]
        less, more = tuple(n // 2 for n in whole), tuple(n - n // 2 for n in whole)
        return (less, more) if automatic == "SAME_UPPER" else (more, less)
    pads = given.get("pads", []) if automatic != "VALID" else []
    return tuple(pads[:rank] or [0] * rank), tuple(pads[rank:] or [0] * rank)


def every_tap(x: str, windows: Windows, to: NodeWriter) -> list[str]:
    """What all windows have at each tap: `x (a, b, sizes...)` cut to `(a, b, out...)`, once for every tap.

    Where `windows.short` is true, the spatial axes come out joined.
    """
    if windows.short:
        return _joined(x, windows, to)
    wide = padded(x, windows, to)
    return [tap(wide, at, windows, 2, to) for at in windows.taps]


def padded(x: str, windows: Windows, to: NodeWriter) -> str:
    """`x (a, b, sizes...)` with the zeros around it."""
    if not windows.padded:
        return x
    return to.add("Pad", [x, to.sizes(0, 0, *windows.begin, 0, 0, *windows.end)])


def tap(x: str, at: tuple[int, ...], windows: Windows, first: int, to: NodeWriter) -> str:
    """What every window has at one tap: `x` with its spatial axes, from `first` on, cut to `windows.out`."""
    if windows.area == 1 and set(windows.strides) == {1}:
        return x
    starts = [t * d for t, d in zip(at, windows.dilations, strict=True)]
    stops = [a + (o - 1) * s + 1 for a, o, s in zip(starts, windows.out, windows.strides, strict=True)]
    axes = to.sizes(*range(first, first + windows.rank))
    return to.add("Slice", [x, to.sizes(*starts), to.sizes(*stops), axes, to.sizes(*windows.strides)])


def _joined(x: str, windows: Windows, to: NodeWriter) -> list[str]:
    """Rows one behind the other, so that a tap is one stretch of an image instead of many short rows.

    What a shift to the side brings in from the row before or after is set to 0 first.
    """
    width, (above, left), (below, right) = windows.sizes[1], windows.begin, windows.end
    rows = to.add("Reshape", [x, to.sizes(0, 0, -1)])
    ends = [0, 0, above * width + left, 0, 0, below * width + right]
    line = to.add("Pad", [rows, to.sizes(*ends)])
    column = (np.arange((windows.sizes[0] + above + below) * width + left + right) - left) % width
    shifts = [t * windows.dilations[1] for t in range(windows.kernel[1])]
    lines = []
    for shift in shifts:
        reached = column - (shift - left)
        inside = ((reached >= 0) & (reached < width)).astype(np.float32)
        lines.append(line if inside.all() else to.add("Mul", [line, to.constant(inside)]))
    taps = []
    for row, at in windows.taps:
        start = row * windows.dilations[0] * width + shifts[at]
        bounds = to.sizes(start), to.sizes(start + windows.out[0] * width)
        taps.append(to.add("Slice", [lines[at], *bounds, to.sizes(2)]))
    return taps
