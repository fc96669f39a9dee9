from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.domain.stream.running_statistics import RunningMoments
from edged.domain.training.batch_pool import BatchMix, Reservoir
from edged.workbench.demo.plant import CLASSES, FEATURES, phases, plant

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Labels = NDArray[np.int64]

N = 9000
CHUNK = 100
PRETRAIN = N // 10


def test_readings_are_finite_and_in_their_units() -> None:
    x, y = plant(seed=3, total=4000)
    assert (x.shape, y.shape) == ((4000, len(FEATURES)), (4000,))
    assert x.dtype == np.float32
    assert y.dtype == np.int64
    low = [1100, 25, 0.8, 5, 0, 0, 0, 15, 10]
    high = [1900, 80, 5.0, 25, 15, 10, 6, 100, 45]
    assert (x > low).all()
    assert (x < high).all()


def test_every_state_is_frequent_in_every_phase() -> None:
    _, y = plant(seed=0, total=N)
    starts = [start for start, _ in phases(N)]
    for part in np.split(y, starts[1:]):
        share = np.bincount(part, minlength=len(CLASSES)) / len(part)
        assert len(share) == len(CLASSES)
        assert share.min() > 0.1


def test_seeds_differ() -> None:
    assert not np.array_equal(plant(1, 50)[0], plant(2, 50)[0])


@given(st.integers(1, 10**6))
def test_phases_begin_at_zero_and_are_in_order(total: int) -> None:
    starts = [start for start, _ in phases(total)]
    assert starts[0] == 0
    assert starts == sorted(starts)
    assert starts[-1] <= total


# ---- what the drift does to a model --------------------------------------------------------------


class Network:
    """A 9-64-32-4 network with ReLU, trained by AdamW on cross-entropy; plain numpy."""

    def __init__(self, rng: np.random.Generator) -> None:
        sizes = (len(FEATURES), 64, 32, len(CLASSES))
        self.parameters: list[NDArray[Any]] = []  # weight, bias, weight, bias ...
        for a, b in pairwise(sizes):
            self.parameters += [rng.normal(0, np.sqrt(2 / a), (a, b)), np.zeros(b)]
        self.first = [np.zeros_like(value) for value in self.parameters]
        self.second = [np.zeros_like(value) for value in self.parameters]
        self.steps = 0
        self.scaling: tuple[Floats, Floats] = (np.zeros(sizes[0], np.float32), np.ones(sizes[0], np.float32))

    def layers(self, x: Floats) -> list[NDArray[Any]]:
        """The input of every layer, and the output of the last."""
        mean, scale = self.scaling
        out: list[NDArray[Any]] = [np.clip((x - mean) * scale, -10, 10)]
        for i in range(0, len(self.parameters), 2):
            if i > 0:
                out[-1] = np.maximum(out[-1], 0)
            out.append(out[-1] @ self.parameters[i] + self.parameters[i + 1])
        return out

    def right(self, x: Floats, y: Labels) -> NDArray[np.bool_]:
        return np.asarray(self.layers(x)[-1].argmax(axis=1) == y)

    def step(self, x: Floats, y: Labels) -> None:
        *inputs, output = self.layers(x)
        grown = np.exp(output - output.max(axis=1, keepdims=True))
        slope = grown / grown.sum(axis=1, keepdims=True)
        slope[np.arange(len(y)), y] -= 1
        slope /= len(y)
        gradients: list[NDArray[Any]] = []
        for before, weight in zip(inputs[::-1], self.parameters[-2::-2], strict=True):
            gradients = [before.T @ slope, slope.sum(axis=0), *gradients]
            slope = (slope @ weight.T) * (before > 0)
        self.update(gradients)

    def update(self, gradients: list[NDArray[Any]]) -> None:
        self.steps += 1
        for i, gradient in enumerate(gradients):
            self.first[i] += 0.1 * (gradient - self.first[i])
            self.second[i] += 0.001 * (gradient**2 - self.second[i])
            scale = np.sqrt(self.second[i] / (1 - 0.999**self.steps)) + 1e-8
            pull = self.first[i] / (1 - 0.9**self.steps) / scale
            self.parameters[i] -= 1e-3 * (pull + 0.01 * self.parameters[i])


def pretrained(x: Floats, y: Labels, seed: int) -> Network:
    rng = np.random.default_rng(seed)
    network = Network(rng)
    moments = RunningMoments(1000)
    moments.update(x)
    network.scaling = moments.scale()
    for _ in range(600):
        rows = rng.integers(0, len(x), 64)
        network.step(x[rows], y[rows])
    return network


def frozen(x: Floats, y: Labels, seed: int) -> NDArray[np.bool_]:
    """Which predictions are right, `(N,)`, of a model that stays as it was after pre-training."""
    return pretrained(x[:PRETRAIN], y[:PRETRAIN], seed).right(x, y)


def adapted(x: Floats, y: Labels, seed: int) -> NDArray[np.bool_]:
    """The same, learning on: labels 100 late, 50 steps per 100, a quarter new, 5,000 remembered."""
    rng = np.random.default_rng(seed)
    network = pretrained(x[:PRETRAIN], y[:PRETRAIN], seed)
    moments = RunningMoments(1000)
    moments.update(x[:PRETRAIN])
    memory = Reservoir(5000)
    memory.add(np.arange(PRETRAIN), rng)
    right = np.zeros(N, bool)
    for start in range(0, N, CHUNK):
        chunk = slice(start, start + CHUNK)
        right[chunk] = network.right(x[chunk], y[chunk])
        new = np.arange(start - CHUNK, start)
        if new[0] < PRETRAIN:
            continue
        moments.update(x[new])
        network.scaling = moments.scale()
        for _ in range(50):
            fresh, _, old = BatchMix(0.25).counts(64, len(new), 0, len(memory.ids))
            rows = rng.choice(new, fresh)
            if old:
                rows = np.concatenate([rows, rng.choice(memory.ids, old)])
            network.step(x[rows], y[rows])
        memory.add(new, rng)
    return right


@pytest.mark.parametrize("seed", [0, 1])
def test_a_frozen_model_falls_and_a_learning_one_recovers_after_every_change(seed: int) -> None:
    x, y = plant(seed, N)
    starts = [start for start, _ in phases(N)]
    still, learning = frozen(x, y, seed), adapted(x, y, seed)
    assert still[PRETRAIN : starts[1]].mean() > 0.9
    assert still[starts[2] :].mean() < 0.75
    for begin, end in pairwise([*starts[1:], N]):
        # The second half of a phase: the change has been learned.
        assert learning[(begin + end) // 2 : end].mean() > 0.85
    assert learning[PRETRAIN:].mean() > still[PRETRAIN:].mean() + 0.15
