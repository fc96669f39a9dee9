"""onnxruntime's checkpoint format, read and written without its package: judged by its package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.engines import open_engine
from edged.engines.native import api
from edged.engines.native.checkpoint import FormatError, TrainingCheckpoint, dump, load
from tests.engines.bundles import batches, classifier
from tests.installed import needs_native

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
NAMES = st.text(min_size=1, max_size=12)


def filled(shape: tuple[int, ...], start: int) -> np.ndarray:
    return np.arange(start, start + int(np.prod(shape)), dtype=np.float32).reshape(shape)


@st.composite
def checkpoints(draw: st.DrawFn) -> TrainingCheckpoint:
    shapes = draw(st.dictionaries(NAMES, SHAPES, max_size=4))
    trainable = {name: filled(shape, i) for i, (name, shape) in enumerate(shapes.items())}
    frozen = {f"{name}.frozen": value + 1 for name, value in trainable.items()}
    count = draw(st.integers(0, 2))
    moments = {name: [value * k for k in range(count)] for name, value in trainable.items()}
    return TrainingCheckpoint(trainable, frozen, moments, draw(st.integers(0, 2**62)) if moments else 0)


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@given(checkpoints())
@settings(max_examples=100, deadline=None)
def test_what_is_written_is_read_back(checkpoint: TrainingCheckpoint) -> None:
    found = load(dump(checkpoint))
    assert same(found.trainable, checkpoint.trainable)
    assert same(found.frozen, checkpoint.frozen)
    assert found.step == checkpoint.step
    assert found.moments.keys() == checkpoint.moments.keys()
    for name, kept in checkpoint.moments.items():
        assert all(np.array_equal(a, b) for a, b in zip(found.moments[name], kept, strict=True))


@needs_native
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_upstream_reads_what_is_written_and_says_the_same(tmp_path: Path, optimizer: str) -> None:
    engine = open_engine("native", classifier(tmp_path / "b", optimizer=optimizer, engine="native"))
    for batch in batches(3):
        engine.step(*batch)
    engine.save(tmp_path)
    found = load((tmp_path / "checkpoint").read_bytes())
    assert found.step == 3
    assert same(found.trainable | found.frozen, engine.parameters())
    (tmp_path / "again").write_bytes(dump(found))
    state = api.load("api").CheckpointState.load_checkpoint(str(tmp_path / "again"))
    assert same({name: np.array(p.data) for name, p in state.parameters}, engine.parameters())
    assert {name for name, p in state.parameters if p.requires_grad} == set(found.trainable)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    engine = open_engine("portable", classifier(tmp_path_factory.mktemp("checkpoint") / "b"))
    trained = engine.parameters()
    fixed = {name: trained.pop(name) for name in ("input.mean", "input.scale")}
    return dump(TrainingCheckpoint(trained, fixed, {name: [v, v] for name, v in trained.items()}, step=1))


def test_a_checkpoint_that_was_cut_is_refused(content: bytes) -> None:
    for length in range(0, len(content) - 8, 31):
        with pytest.raises(FormatError):
            load(content[:length])


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_damage_is_refused_or_read_but_nothing_else_happens(content: bytes, data: st.DataObject) -> None:
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = load(bytes(damaged))
    except FormatError:
        read = 0
    else:
        read = sum(value.nbytes for value in found.trainable.values())
    assert read <= len(content)
