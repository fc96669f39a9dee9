"""Going on after a restart must be going on bit by bit."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.domain.protocols import LearningRate
from edged.engines.native import NativeEngine
from edged.errors import CorruptError
from tests.engines.bundles import batches, classifier

if TYPE_CHECKING:
    from pathlib import Path

RATE = LearningRate(0.02, warmup=7, total=25)

CONTINUE = """
import sys
from pathlib import Path
from edged.engines.native import NativeEngine
from edged.storage.bundles import Bundle
from tests.engines.bundles import batches
bundle, saved, out = map(Path, sys.argv[1:])
engine = NativeEngine(Bundle.open(bundle))
engine.restore(saved)
for batch in batches(20)[10:]:
    engine.step(*batch)
out.mkdir()
engine.save(out)
"""


def weights(engine: NativeEngine) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in engine.parameters().items()}


def halfway(bundle_path: Path, saved: Path, optimizer: str) -> NativeEngine:
    """Ten steps, saved; and the same engine after ten more."""
    engine = NativeEngine(classifier(bundle_path, optimizer=optimizer))
    engine.begin(RATE)
    engine.set_parameters({"input.mean": np.full(5, 0.1, np.float32)})
    for batch in batches(20)[:10]:
        engine.step(*batch)
    saved.mkdir()
    engine.save(saved)
    for batch in batches(20)[10:]:
        engine.step(*batch)
    return engine


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_another_process_ends_with_the_same_bits(tmp_path: Path, optimizer: str) -> None:
    straight = halfway(tmp_path / "b", tmp_path / "saved", optimizer)
    arguments = [str(tmp_path / name) for name in ("b", "saved", "out")]
    subprocess.run([sys.executable, "-c", CONTINUE, *arguments], check=True, timeout=60)
    resumed = NativeEngine(classifier(tmp_path / "b", optimizer=optimizer))
    resumed.restore(tmp_path / "out")
    assert weights(resumed) == weights(straight)
    # The moments and the rate are the same too: one more step still agrees.
    for engine in (straight, resumed):
        engine.step(*batches(1, seed=5)[0])
    assert weights(resumed) == weights(straight)


def test_the_same_engine_can_go_back(tmp_path: Path) -> None:
    engine = halfway(tmp_path / "b", tmp_path / "saved", "adamw")
    after = weights(engine)
    engine.restore(tmp_path / "saved")
    assert weights(engine) != after
    for batch in batches(20)[10:]:
        engine.step(*batch)
    assert weights(engine) == after


def test_saving_changes_nothing(tmp_path: Path) -> None:
    straight = halfway(tmp_path / "b", tmp_path / "saved", "adamw")
    other = NativeEngine(classifier(tmp_path / "b"))
    other.begin(RATE)
    other.set_parameters({"input.mean": np.full(5, 0.1, np.float32)})
    for batch in batches(20):
        other.step(*batch)
    assert weights(other) == weights(straight)


@pytest.mark.parametrize("name", ["checkpoint", "engine.json"])
@pytest.mark.parametrize("keep", [0, 20, None])
def test_a_damaged_save_is_refused_and_the_engine_stays_as_it_was(
    tmp_path: Path, name: str, keep: int | None
) -> None:
    engine = halfway(tmp_path / "b", tmp_path / "saved", "adamw")
    before = weights(engine)
    file = tmp_path / "saved" / name
    if keep is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CorruptError, match=name):
        engine.restore(tmp_path / "saved")
    assert weights(engine) == before
    assert engine.step(*batches(1)[0]).applied
