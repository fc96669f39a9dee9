"""Rules of convolutions and transposed convolutions."""

from __future__ import annotations

import pytest

from tests.bundles.autodiff.cases import Case, of
from tests.bundles.autodiff.oracle import assert_refused, judge


def convolution(
    sizes: tuple[int, ...],
    kernel: tuple[int, ...],
    attributes: str = "",
    *,
    channels: tuple[int, int] = (2, 3),
    groups: int = 1,
    bias: bool = True,
    operator: str = "Conv",
) -> Case:
    given = ", ".join(filter(None, [attributes, f"group = {groups}" if groups > 1 else ""]))
    first = channels[::-1] if operator == "Conv" else channels
    weights = (first[0], first[1] // groups)
    tensors = {"x": of("b", channels[0], *sizes), "w": of(*weights, *kernel)}
    if bias:
        tensors["c"] = of(channels[1])
    return Case(f"y = {operator}{f'<{given}>' if given else ''}({', '.join(tensors)})", tensors, rows=(3, 1))


def transposed(*args: object, **kwargs: object) -> Case:
    return convolution(*args, operator="ConvTranspose", **kwargs)  # type: ignore[arg-type]


CASES = [
    convolution((7,), (3,)),
    convolution((7,), (3,), bias=False),
    convolution((7,), (3,), "pads = [1, 1]"),
    convolution((8,), (3,), "pads = [2, 0], strides = [2]"),
    convolution((9,), (3,), "dilations = [2], strides = [3], pads = [1, 3]"),
    convolution((7,), (1,), "strides = [2]"),
    convolution((6,), (6,)),
    *(
        convolution((size,), (kernel,), f'auto_pad = "{pad}", strides = [{stride}]')
        for pad in ("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET")
        for size, kernel, stride in ((7, 4, 1), (8, 3, 2), (7, 2, 3))
    ),
    convolution((5, 6), (3, 3)),
    convolution((5, 6), (3, 3), "pads = [1, 1, 1, 1]"),
    convolution((5, 6), (2, 3), "pads = [0, 1, 2, 0], strides = [2, 1]"),
    convolution((6, 6), (3, 2), "strides = [2, 3]"),
    convolution((7, 7), (2, 3), "dilations = [2, 2], pads = [1, 1, 1, 1]"),
    convolution((7, 6), (3, 3), 'auto_pad = "SAME_UPPER", strides = [2, 2]'),
    convolution((7, 6), (2, 4), 'auto_pad = "SAME_LOWER"'),
    convolution((4, 5), (1, 1)),
    convolution((4, 5), (1, 1), "strides = [2, 2]"),
    convolution((4, 5), (1, 1), "pads = [1, 0, 0, 1]"),
    convolution((4, 4, 5), (2, 3, 2)),
    convolution((4, 4, 5), (2, 3, 2), "pads = [1, 1, 0, 0, 1, 1], strides = [2, 1, 2]"),
    convolution((3, 3, 4), (2, 2, 2), "dilations = [2, 1, 2]"),
    # Wide ones, whose filters' gradient is taken tap by tap; narrow ones with many filters, by image.
    convolution((5, 5), (3, 3), "pads = [1, 1, 1, 1]", channels=(17, 4)),
    convolution((9,), (3,), "strides = [2]", channels=(16, 3)),
    convolution((5, 5), (3, 2), channels=(2, 9)),
    convolution((9,), (3,), "pads = [1, 0]", channels=(1, 4)),
    convolution((4, 4, 4), (2, 2, 2), channels=(1, 4)),
    convolution((30,), (3,), channels=(2, 1)),
    convolution((3, 26), (3, 3), "pads = [1, 1, 1, 1]", channels=(1, 2)),
    # Groups; depthwise with short rows, long ones, steps, dilations and one channel for several filters.
    convolution((7,), (3,), channels=(4, 6), groups=2),
    convolution((5, 6), (3, 3), "pads = [1, 1, 1, 1]", channels=(4, 6), groups=2),
    convolution((5, 6), (2, 2), "strides = [2, 2]", channels=(4, 8), groups=2),
    convolution((4, 3), (2, 2), channels=(36, 4), groups=2),
    convolution((5, 6), (3, 3), "pads = [1, 1, 1, 1]", channels=(3, 3), groups=3),
    convolution((5, 6), (3, 3), "pads = [2, 2, 2, 2], dilations = [2, 2]", channels=(3, 3), groups=3),
    convolution((5, 6), (3, 3), "pads = [0, 1, 2, 1]", channels=(3, 3), groups=3),
    convolution((5, 6), (3, 3), "pads = [3, 1, 3, 1]", channels=(3, 3), groups=3),
    convolution((3, 26), (3, 3), "pads = [1, 1, 1, 1]", channels=(2, 2), groups=2),
    convolution((5, 6), (3, 3), "strides = [2, 2], pads = [1, 1, 1, 1]", channels=(3, 3), groups=3),
    convolution((5, 6), (4, 4), 'auto_pad = "SAME_UPPER"', channels=(2, 2), groups=2),
    convolution((7,), (3,), "pads = [1, 1]", channels=(3, 3), groups=3),
    convolution((7,), (3,), "strides = [2]", channels=(3, 3), groups=3),
    convolution((3, 4, 4), (2, 3, 3), "pads = [0, 1, 1, 1, 1, 1]", channels=(2, 2), groups=2),
    convolution((5, 5), (3, 3), channels=(2, 4), groups=2),
    convolution((3, 4, 4), (2, 2, 2), channels=(4, 4), groups=2),
    # Some of the gradients only.
    *(
        Case("y = Conv(x, w, c)", {"x": of("b", 2, 5), "w": of(3, 2, 3), "c": of(3)}, fixed=fixed)
        for fixed in (("x",), ("w",), ("x", "w"), ("x", "c"), ("w", "c"))
    ),
    # Filters that are computed, and that two layers share.
    Case("k = Tanh(w) y = Conv<pads = [1, 1]>(x, k)", {"x": of("b", 2, 5), "w": of(3, 2, 3)}),
    Case("a = Conv<pads = [1, 1]>(x, w) t = Tanh(a) y = Conv(t, w)", {"x": of("b", 2, 5), "w": of(2, 2, 3)}),
    transposed((5,), (3,)),
    transposed((5,), (3,), bias=False),
    transposed((5,), (3,), "strides = [2], pads = [1, 0]"),
    transposed((5,), (4,), "strides = [2], pads = [1, 1], output_padding = [1]"),
    transposed((5,), (2,), "strides = [3], output_padding = [2]"),
    transposed((5,), (3,), "dilations = [2], pads = [1, 1]"),
    transposed((5,), (3,), 'auto_pad = "VALID", strides = [2]'),
    transposed((3, 4), (3, 2)),
    transposed((3, 4), (3, 3), "strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]"),
    transposed((3, 4), (2, 2), "strides = [2, 2]"),
    transposed((3, 4), (2, 2), "strides = [2, 2]", channels=(4, 6), groups=2),
    transposed((3, 4), (3, 3), channels=(3, 3), groups=3),
    transposed((5,), (3,), "strides = [2]", channels=(3, 3), groups=3),
    transposed((5,), (3,), channels=(18, 17)),
    transposed((2, 3, 3), (2, 2, 2), "strides = [2, 1, 2]"),
    *(
        Case("y = ConvTranspose(x, w, c)", {"x": of("b", 2, 4), "w": of(2, 3, 3), "c": of(3)}, fixed=fixed)
        for fixed in (("x",), ("w",), ("x", "w"))
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case: Case) -> None:
    judge(case)


REFUSED = [
    # More padding than a step, which only a dilation allows.
    (transposed((5,), (3,), "dilations = [2], output_padding = [1]"), "output_padding"),
    (transposed((5,), (3,), 'auto_pad = "SAME_UPPER", strides = [2]'), "padding follows from its output"),
    (transposed((5,), (3,), "output_shape = [9], strides = [2]"), "padding follows from its output"),
    (Case("y = Conv(x, w)", {"x": of(1, 2, "b", 5), "w": of(3, 2, 1, 3)}), "only the batch may vary"),
]


@pytest.mark.parametrize(("case", "reason"), REFUSED, ids=str)
def test_refused(case: Case, reason: str) -> None:
    assert_refused(case, reason)
