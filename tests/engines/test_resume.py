"""Going on after a restart must be going on bit by bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.domain.protocols import LearningRate
from edged.engines.portable.engine import PortableEngine
from tests.engines.bundles import batches, classifier, halfway

if TYPE_CHECKING:
    from edged.domain.protocols import Engine

RATE = LearningRate(0.02, warmup=7, total=25)

CONTINUE = """
import sys
from pathlib import Path
from edged.storage.models.bundles import Bundle
from tests.engines.bundles import batches
from edged.engines.portable.engine import PortableEngine
bundle, saved, out = map(Path, sys.argv[1:])
engine = PortableEngine(Bundle.open(bundle))
engine.restore(saved)
for batch in batches(20)[10:]:
    engine.step(*batch)
out.mkdir()
engine.save(out)
"""


def weights(engine: Engine) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in engine.parameters().items()}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_another_process_ends_with_the_same_bits(tmp_path: Path, optimizer: str) -> None:
    bundle = classifier(tmp_path / "b", optimizer=optimizer)
    straight = halfway(PortableEngine(bundle), RATE, tmp_path / "saved")
    arguments = [str(tmp_path / name) for name in ("b", "saved", "out")]
    subprocess.run([sys.executable, "-c", CONTINUE, *arguments], check=True, timeout=60)
    resumed = PortableEngine(bundle)
    resumed.restore(tmp_path / "out")
    assert weights(resumed) == weights(straight)
    # The moments and the rate are the same too: one more step still agrees.
    for engine in (straight, resumed):
        engine.step(*batches(1, seed=5)[0])
    assert weights(resumed) == weights(straight)


def test_saving_changes_nothing(tmp_path: Path) -> None:
    straight = halfway(PortableEngine(classifier(tmp_path / "b")), RATE, tmp_path / "saved")
    other = PortableEngine(classifier(tmp_path / "b"))
    other.begin(RATE)
    other.set_parameters({"input.mean": np.full(5, 0.1, np.float32)})
    for batch in batches(20):
        other.step(*batch)
    assert weights(other) == weights(straight)
