"""Gradients of convolutions.

Notation: ḡ `(N, M, out...)` is the gradient that comes in, x `(N, C, sizes...)` the input, W
`(M, C/groups, kernel...)` the filters. Of the convolution y[n,m,o] = Σ W[m,c,t]·x[n,c,o·stride + t·dilation −
begin] follow

    dW[m,c,t] = Σₙₒ ḡ[n,m,o]·x[n,c,o·stride + t·dilation − begin],   dB[m] = Σₙₒ ḡ[n,m,o],

and dx, which is the transposed convolution of ḡ with W by definition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from edged.bundles.autodiff.rules.windows import Windows, every_tap, padded, tap
from edged.bundles.autodiff.tape import Adjoint, Adjoints, Tape, backward
from edged.bundles.graph.writer import NodeWriter, attributes_of, write_choice

# Channels below which the product with a single tap is too narrow to be fast.
NARROW = 16
# Values in the columns of a layer, for each filter, up to which they are all held at once: they then take
# no more than twice the memory of the layer's own output, which is held anyway.
COLUMNS_PER_FILTER = 2


@backward("Conv")
def convolution(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Of y = Conv(x, W) + B: dx = ConvTranspose(ḡ, W), dW by products of ḡ with shifted x, dB = Σ ḡ."""
    (x, filters), y = node.input[:2], node.output[0]
    layer = ConvolutionLayer.between(node, x, y, filters, t)
    gradient = t.whole(gradients[0], node)
    return _gradients(node, layer, gradient, layer.input_gradient, (x, gradient))


@backward("ConvTranspose")
def transposed_convolution(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Of y = ConvTranspose(x, W): dx = Conv(ḡ, W), dW as of Conv with input ḡ and gradient x.

    It is the input gradient of a convolution with W from y to x.
    """
    (x, filters), y = node.input[:2], node.output[0]
    layer = ConvolutionLayer.between(node, y, x, filters, t)
    gradient = t.whole(gradients[0], node)
    return _gradients(node, layer, gradient, layer.convolved, (gradient, x))


def _gradients(
    node: onnx.NodeProto,
    layer: ConvolutionLayer,
    gradient: str,
    of_input: Callable[[str, str], str],
    slid: tuple[str, str],
) -> Adjoints:
    """The gradients that are wanted; `slid`: what the filters slide along, and what comes of it."""
    t, filters, found = layer.to, node.input[1], list[Adjoint | None]([None, None, None])
    if t.wants(node, 0):
        found[0] = Adjoint(of_input(gradient, filters), t.dims(node.input[0], node))
    if t.wants(node, 1):
        found[1] = Adjoint(layer.filter_gradient(*slid), t.dims(filters, node))
    if t.wants(node, 2):
        total = t.add("ReduceSum", [gradient, t.sizes(0, *layer.spatial)], keepdims=0)
        found[2] = Adjoint(total, t.dims(node.input[2], node))
    return found


@dataclass(frozen=True)
class ConvolutionLayer:
    """A convolution from `(N, groups·channels, windows.sizes)` to `(N, groups·filters, windows.out)`."""

    windows: Windows
    groups: int
    filters: int
    channels: int
    to: Tape

    @classmethod
    def between(cls, node: onnx.NodeProto, wide: str, out: str, filters: str, t: Tape) -> ConvolutionLayer:
        """The convolution from tensor `wide` to tensor `out`, which `node` computes or turns round."""
        shape, sizes, reached = t.fixed(filters, node), t.dims(wide, node)[2:], t.dims(out, node)[2:]
        if node.op_type == "Conv":
            windows = Windows.of(node, sizes, shape[2:])
        else:
            windows = Windows.reached(node, reached, shape[2:], sizes)
        groups = int(attributes_of(node).get("group", 1))
        return cls(windows, groups, shape[0] // groups, shape[1], t)

    @property
    def spatial(self) -> range:
        """Numbers of the spatial axes."""
        return range(2, 2 + self.windows.rank)

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the operator Conv."""
        windows = self.windows
        return {
            "strides": windows.strides,
            "dilations": windows.dilations,
            "pads": [*windows.begin, *windows.end],
            "group": self.groups,
        }

    def convolved(self, x: str, filters: str) -> str:
        """Write the convolution of `x` with `filters`."""
        return self.to.add("Conv", [x, filters], **self.attributes)

    # ---- of the input ------------------------------------------------------------------------

    def input_gradient(self, gradient: str, filters: str) -> str:
        """Write dx: a transposed convolution, or for a depthwise one a plain one with filters reversed.

        Measured on one thread, depthwise, the plain one takes 0.4 to 0.8 of the time.
        """
        windows = self.windows
        inside = all(p < e for p, e in zip((*windows.begin, *windows.end), windows.extents * 2, strict=True))
        if self.filters == self.channels == 1 and set(windows.strides) == {1} and inside:
            return self._reversed(gradient, filters)
        if windows.rank == 1:
            return self._in_the_plane(gradient, filters)
        inputs = [gradient, filters]
        return self.to.add("ConvTranspose", inputs, **self.attributes, output_padding=windows.remainder)

    def _in_the_plane(self, gradient: str, filters: str) -> str:
        """A transposed convolution in one dimension, written as one in two.

        onnxruntime has a routine of its own for putting columns back in two dimensions: half the time.
        """
        to, windows = self.to, self.windows
        inputs = [to.add("Unsqueeze", [name, to.sizes(2)]) for name in (gradient, filters)]
        plane = to.add(
            "ConvTranspose",
            inputs,
            strides=[1, *windows.strides],
            dilations=[1, *windows.dilations],
            pads=[0, *windows.begin, 0, *windows.end],
            output_padding=[0, *windows.remainder],
            group=self.groups,
        )
        return to.add("Squeeze", [plane, to.sizes(2)])

    def _reversed(self, gradient: str, filters: str) -> str:
        to, windows = self.to, self.windows
        # A product with the exchange matrix turns the taps round; Slice with steps of -1 is slower.
        exchange = to.constant(np.eye(windows.area, dtype=np.float32)[::-1])
        turned = to.add("MatMul", [to.add("Reshape", [filters, to.sizes(-1, windows.area)]), exchange])
        kernel = to.add("Reshape", [turned, to.sizes(-1, 1, *windows.kernel)])
        begin = [e - 1 - p for e, p in zip(windows.extents, windows.begin, strict=True)]
        end = [e - 1 - p for e, p in zip(windows.extents, windows.end, strict=True)]
        return to.add(
            "Conv", [gradient, kernel], dilations=windows.dilations, pads=[*begin, *end], group=self.groups
        )

    # ---- of the filters ----------------------------------------------------------------------

    def filter_gradient(self, x: str, gradient: str) -> str:
        """Write dW, in the form that suits the layer.

        Against onnxruntime's own kernel, 16 rows, one thread: a depthwise layer takes 1.3 to 1.7 times as
        long, all others 1.2 to 1.6 times. Columns of all taps in one product are up to 1.4 times slower than
        tap by tap at 64 rows, since they do not stay in the cache, and take as many times the memory of the
        input as there are taps.
        """
        columns = self.channels * self.windows.area
        if self.filters == self.channels == 1:
            return self._by_channel(x, gradient)
        if self.channels < NARROW and columns <= COLUMNS_PER_FILTER * self.filters:
            return self._by_image(x, gradient)
        return self._by_tap(x, gradient)

    def _by_channel(self, x: str, gradient: str) -> str:
        """Depthwise: for every tap Σ ḡ∘x, the sum over batch and windows."""
        to, windows = self.to, self.windows
        axes = to.sizes(0, 2) if windows.short else to.sizes(0, *self.spatial)
        if windows.short:
            gradient = to.add("Reshape", [gradient, to.sizes(0, 0, -1)])
        sums = [
            to.add("ReduceSum", [to.add("Mul", [gradient, shifted]), axes], keepdims=0)
            for shifted in every_tap(x, windows, to)
        ]
        columns = [to.add("Unsqueeze", [item, to.sizes(1)]) for item in sums]
        return self._shaped(to.add("Concat", columns, axis=1))

    def _by_image(self, x: str, gradient: str) -> str:
        """Σₙ ḡₙ·Kₙᵀ, where the columns Kₙ hold the input under every window of image n, tap by tap."""
        to, windows = self.to, self.windows
        wide = to.add("Unsqueeze", [padded(x, windows, to), to.sizes(2)])
        taps = [tap(wide, at, windows, 3, to) for at in windows.taps]
        joined = to.add("Concat", taps, axis=2) if len(taps) > 1 else taps[0]
        size = math.prod(windows.out)
        columns = to.add("Reshape", [joined, to.sizes(-1, self.groups, self.channels * windows.area, size)])
        rows = to.add("Reshape", [gradient, to.sizes(-1, self.groups, self.filters, size)])
        each = to.add("MatMul", [rows, to.add("Transpose", [columns], perm=[0, 1, 3, 2])])
        return self._shaped(to.add("ReduceSum", [each, to.sizes(0)], keepdims=0))

    def _by_tap(self, x: str, gradient: str) -> str:
        """ḡ·Xᵀ for every tap, or for every row of taps of a narrow input; Σ over all windows.

        A single image: for all taps at once, whose columns are small then. In one dimension, with windows of
        9 × 128 values and 100,000 parameters, a step takes 3 to 5 % less time; from three images on more.
        """
        to, windows = self.to, self.windows
        # Images and channels change places, so that one product sums over all images.
        exchanged = [1, 0, *self.spatial]
        rows = self._rows(to.add("Transpose", [gradient], perm=exchanged), self.filters, to)
        turned = to.add("Transpose", [x], perm=exchanged)
        together = windows.kernel[-1] if self.channels < NARROW else 1
        if together == windows.area:
            return self._shaped(self._products(rows, turned, together, to))
        one, more, result = to.body(), to.body(), to.name("products")
        forms = (
            [self._products(rows, turned, windows.area, one)],
            [self._products(rows, turned, together, more)],
        )
        alone = to.add("Equal", [to.add("Shape", [x], start=0, end=1), to.sizes(1)])
        # Brought into shape behind the choice: within it, that would copy.
        write_choice(alone, (one, more), forms, [result], to)
        return self._shaped(result)

    def _products(self, rows: str, turned: str, together: int, to: NodeWriter) -> str:
        """The products with so many taps each, taps as the last axis."""
        taps = every_tap(turned, self.windows, to)
        if together > 1:
            parts = [taps[i : i + together] for i in range(0, len(taps), together)]
            taps = [to.add("Concat", part, axis=1) for part in parts]
        products = [self._product(rows, part, together, to) for part in taps]
        return self._interleaved(products, together, to)

    def _product(self, rows: str, columns: str, together: int, to: NodeWriter) -> str:
        """ḡ·Xᵀ for some taps; `(filters, channels·taps)`, with an axis for the groups before, if any."""
        flat = self._rows(columns, self.channels * together, to)
        if self.groups == 1:
            return to.add("Gemm", [rows, flat], transB=1)
        return to.add("MatMul", [rows, to.add("Transpose", [flat], perm=[0, 2, 1])])

    def _rows(self, turned: str, each: int, to: NodeWriter) -> str:
        """As a matrix of `each` rows, one matrix for every group."""
        lead = [self.groups] if self.groups > 1 else []
        return to.add("Reshape", [turned, to.sizes(*lead, each, -1)])

    def _interleaved(self, products: list[str], together: int, to: NodeWriter) -> str:
        """Taps as the last axis instead of the first."""
        if len(products) == 1:
            return products[0]
        last = [together] if together > 1 else []
        joined = to.add("Concat", products, axis=0)
        flat = to.add("Reshape", [joined, to.sizes(len(products), -1, *last)])
        return to.add("Transpose", [flat], perm=[1, 0, 2][: 2 + len(last)])

    def _shaped(self, values: str) -> str:
        shape = self.to.sizes(self.groups * self.filters, self.channels, *self.windows.kernel)
        return self.to.add("Reshape", [values, shape])
