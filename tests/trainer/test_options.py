"""Early stopping, and remembered samples that are drawn more often because they are hard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.domain.training.early_stopping import EVERY, validation
from edged.engines.native.engine import NativeEngine
from edged.engines.portable.engine import PortableEngine
from edged.trainer import InterruptedRunError
from tests.device.learning_rig import RecordingEngine, Workshop, after, model_bytes, rows, task, weights

if TYPE_CHECKING:
    from pathlib import Path

    from edged.storage.models.bundles import Bundle

PATIENT: dict[str, Any] = {
    "patience": EVERY,
    "steps": 400,
    "max_steps": 400,
    "average": 0.0,
    "learning_rate": 0.05,
}
SETTINGS: list[dict[str, Any]] = [
    {"patience": 2 * EVERY, "checkpoint_every": 20, "steps": 100, "max_steps": 100, "learning_rate": 0.03},
    {"hard_share": 0.5, "checkpoint_every": 20},
]


def confused(n: int, seed: int = 0) -> tuple[Any, list[Any]]:
    """Samples of which a third has a label that says nothing: learning them by heart helps nobody."""
    x, labels = task(n, seed)
    rng = np.random.default_rng(seed)
    return x, [float(rng.integers(3)) if rng.random() < 0.35 else label for label in labels]


def test_a_run_ends_when_it_no_longer_gets_better(tmp_path: Path, bundle: Bundle) -> None:
    results = []
    for name, patience in (("off", 0), ("on", PATIENT["patience"])):
        shop = Workshop(tmp_path / name, bundle, **PATIENT | {"patience": patience})
        shop.feed(*confused(400))
        results.append(shop.trainee().run(shop.request()))
    assert results[0]["steps"] == 400
    assert results[1]["steps"] < 200


def test_its_best_weights_are_what_is_left(tmp_path: Path, bundle: Bundle) -> None:
    """The weights at the end are those that the run had one patience before."""
    shop = Workshop(tmp_path / "whole", bundle, **PATIENT)
    shop.feed(*confused(400))
    engine = NativeEngine(bundle)
    ended = shop.trainee(engine).run(shop.request())["steps"]
    short = Workshop(tmp_path / "short", bundle, **PATIENT | {"patience": 10_000})
    short.feed(*confused(400))
    other = NativeEngine(bundle)
    short.trainee(other).run(short.request(steps=ended - PATIENT["patience"]))
    assert weights(engine) == weights(other)


def test_what_it_looks_at_is_never_learned(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle, patience=EVERY)
    x, labels = task(400)
    offsets = shop.feed(x, labels)
    engine = RecordingEngine(bundle)
    trainee = shop.trainee(engine)
    trainee.run(shop.request())
    shop.feed(*task(60, 1))
    trainee.run(shop.request())  # now they are remembered ones
    assert not rows(x[validation(offsets)]) & engine.trained_on()


def test_hard_samples_are_replayed_more_often(tmp_path: Path, bundle: Bundle) -> None:
    counts = []
    for name, share in (("off", 0.0), ("on", 0.9)):
        shop = Workshop(tmp_path / name, bundle, hard_share=share, steps=300, max_steps=300, recent=0)
        x, labels = task(400)
        for wrong in range(0, 400, 10):
            labels[wrong] = float((int(str(labels[wrong])[0]) + 1) % 3)
        shop.feed(x, labels)
        engine = RecordingEngine(bundle)
        trainee = shop.trainee(engine)
        trainee.run(shop.request())
        engine.seen.clear()
        shop.feed(*task(60, 1))
        trainee.run(shop.request())
        seen = np.concatenate(engine.seen)
        hard = rows(x[::10])
        counts.append(sum(row.tobytes() in hard for row in seen) / len(seen))
    assert counts[1] > 2 * counts[0]


@pytest.mark.parametrize(("kind", "calls"), [(NativeEngine, 33), (PortableEngine, 4)])
@pytest.mark.parametrize("settings", SETTINGS, ids=["patience", "hard"])
def test_a_stopped_run_ends_with_the_same_bits(
    tmp_path: Path, bundle: Bundle, settings: dict[str, Any], kind: Any, calls: int
) -> None:
    ends = []
    for name, stops in (("straight", []), ("stopped", [calls, 1])):
        shop = Workshop(tmp_path / name, bundle, **settings)
        shop.feed(*confused(300))
        shop.trainee(kind(bundle)).run(shop.request())
        shop.feed(*confused(100, 1))
        for steps in stops:
            with pytest.raises(InterruptedRunError):
                shop.trainee(kind(bundle), stopping=after(steps)).run(shop.request())
        engine = kind(bundle)
        result = shop.trainee(engine).run(shop.request())
        ends.append((weights(engine), result["memory"], result["steps"], model_bytes(result)))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("before", [{}, *SETTINGS], ids=["plain", "patience", "hard"])
@pytest.mark.parametrize("later", [{}, *SETTINGS], ids=["plain", "patience", "hard"])
def test_a_checkpoint_made_without_the_option_is_taken_up_with_it(
    tmp_path: Path, bundle: Bundle, before: dict[str, Any], later: dict[str, Any]
) -> None:
    shop = Workshop(tmp_path, bundle, **before)
    shop.feed(*confused(200))
    with pytest.raises(InterruptedRunError):
        shop.trainee(stopping=after(30)).run(shop.request())
    other = Workshop(tmp_path, bundle, **later)
    other.request()
    assert other.trainee().run(other.request())["consumed"] == 200
