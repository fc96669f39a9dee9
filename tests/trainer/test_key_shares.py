"""A key that sends most samples does not fill most of a batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.device.learning_rig import RecordingEngine, Workshop, batch, rows, task

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle


@pytest.mark.parametrize(("share", "expected"), [(1.0, 0.9), (0.3, 0.3)])
def test_one_key_fills_no_more_of_what_is_trained_on(
    tmp_path: Path, bundle: Bundle, share: float, expected: float
) -> None:
    shop = Workshop(tmp_path / "state", bundle, key_share=share)
    engine = RecordingEngine(bundle)
    x, labels = task(1000)
    samples = batch(shop.log, x, labels)
    keys = [f"m{number % 50 // 10}" if number % 10 == 0 else "loud" for number in range(1000)]
    shop.log.commit(replace(samples, keys=keys))
    shop.trainee(engine).run(shop.request())
    loud = {row.tobytes() for row, key in zip(x, keys, strict=True) if key == "loud"}
    seen = np.concatenate(engine.seen)
    assert len(seen) == 60 * 32
    assert np.mean([row.tobytes() in loud for row in seen]) == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0.0), (0.5, 0.5)])
def test_the_short_memory_fills_its_share_of_what_is_trained_on(
    tmp_path: Path, bundle: Bundle, share: float, expected: float
) -> None:
    """It holds a hundred samples, the long memory all thousand: few of its draws fall on those."""
    shop = Workshop(tmp_path / "state", bundle, new_share=0.25, recent_share=share, recent=100)
    shop.feed(*task(2000))
    trainee = shop.trainee()
    trainee.run(shop.request())
    engine = RecordingEngine(bundle)
    x, labels = task(300, seed=1)
    shop.feed(x, labels)
    shop.trainee(engine).run(shop.request())
    newest = rows(task(2000)[0][-100:])
    part = np.mean([row.tobytes() in newest for row in np.concatenate(engine.seen)])
    assert part == pytest.approx(expected, abs=0.06)


def test_samples_that_are_gone_have_no_key(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path / "state", bundle)
    samples = batch(shop.log, *task(4))
    shop.log.commit(replace(samples, keys=["a", "b", "a", "b"]))
    assert shop.log.keys(np.array([3, 1, 2, 9, 3], np.int64)) == ["a", "a", "b", None, "a"]
