"""Random small networks of convolutions and poolings: both engines must come to the same gradients."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bundles.engines_agree.gradients import assert_equal, both_gradients
from tests.bundles.engines_agree.stacks import Stack

LOSSES = ["cross_entropy", "mse", "l1"]
# Falling and rising ones, with and without flat parts; none at all comes first.
ACTIVATIONS = ["Identity", "Relu", "Tanh", "LeakyRelu", "Sigmoid", "Neg"]


@dataclass(frozen=True)
class Drawn:
    """One layer as drawn; what does not fit the grid that it gets is cut down to it."""

    pool: bool
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    begin: tuple[int, int]
    end: tuple[int, int]
    groups: int
    filters: int
    activation: str


def pairs(largest: int, smallest: int = 1) -> st.SearchStrategy[tuple[int, int]]:
    one = st.integers(smallest, largest)
    return st.tuples(one, one)


DRAWN = st.builds(
    Drawn,
    pool=st.booleans(),
    kernel=pairs(3),
    strides=pairs(3),
    dilations=pairs(2),
    begin=pairs(2, 0),
    end=pairs(2, 0),
    groups=st.sampled_from([1, 1, 2, 4]),
    filters=st.sampled_from([1, 2, 5]),
    activation=st.sampled_from(ACTIVATIONS),
)


def append(stack: Stack, drawn: Drawn) -> None:
    """The layer, with its window cut down to the grid and its padding to the window."""
    ranks = range(stack.rank)
    sizes = stack.shape[1:]
    kernel = [min(drawn.kernel[i], sizes[i]) for i in ranks]
    dilations = [drawn.dilations[i] if drawn.dilations[i] * (kernel[i] - 1) < sizes[i] else 1 for i in ranks]
    attributes: dict[str, Any] = {"dilations": dilations, "strides": [drawn.strides[i] for i in ranks]}
    # A window of a pooling must not lie on padding alone.
    most = [kernel[i] - 1 if drawn.pool else 2 for i in ranks]
    attributes["pads"] = [min(side[i], most[i]) for side in (drawn.begin, drawn.end) for i in ranks]
    if drawn.pool:
        stack.add(drawn.activation).add("MaxPool", kernel_shape=kernel, **attributes)
    else:
        channels = stack.shape[0]
        groups = drawn.groups if channels % drawn.groups == 0 else channels
        stack.conv(groups * drawn.filters, *kernel, group=groups, **attributes).add(drawn.activation)


def assert_agreement(
    layers: list[Drawn], grid: tuple[int, ...], channels: int, loss: str, rows: int, seed: int
) -> None:
    stack = Stack(channels, *grid, seed=seed).conv(4, *[1] * len(grid))
    for drawn in layers:
        append(stack, drawn)
    with tempfile.TemporaryDirectory() as folder:
        assert_equal(*both_gradients(stack.model(), Path(folder), loss=loss, rows=rows, seed=seed))


NETWORKS = given(
    layers=st.lists(DRAWN, min_size=1, max_size=3),
    grid=st.one_of(st.tuples(st.integers(3, 13)), st.tuples(st.integers(3, 9), st.integers(3, 9))),
    channels=st.sampled_from([1, 3, 17]),
    loss=st.sampled_from(LOSSES),
    # An odd number, so that the signs of l1 do not cancel where an image is all padding.
    rows=st.sampled_from([1, 3, 5]),
    seed=st.integers(0, 2**16),
)


@NETWORKS
@settings(max_examples=30, deadline=None)
def test_random_convolutions_have_the_same_gradients(
    layers: list[Drawn], grid: tuple[int, ...], channels: int, loss: str, rows: int, seed: int
) -> None:
    assert_agreement(layers, grid, channels, loss, rows, seed)


@pytest.mark.faults
@pytest.mark.timeout(600)
@NETWORKS
@settings(max_examples=400, deadline=None)
def test_many_random_convolutions_have_the_same_gradients(
    layers: list[Drawn], grid: tuple[int, ...], channels: int, loss: str, rows: int, seed: int
) -> None:
    assert_agreement(layers, grid, channels, loss, rows, seed)
