"""Runs that are held to the champion: to its weights, or to its answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.engines.inference import InferenceModel
from edged.engines.native.engine import NativeEngine
from edged.engines.portable.engine import PortableEngine
from edged.errors import UnavailableError
from tests.device.learning_rig import Workshop, task

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle

PROBE = task(300, 7)[0]


def moved(folder: Path, bundle: Bundle, guide: str, weight: float) -> tuple[float, float]:
    """A run on the opposite rule after one on the rule: how far weights and answers went."""
    shop = Workshop(folder, bundle, replay=0, average=0.0, guide=guide, guide_weight=weight)
    shop.feed(*task(300))
    first = shop.trainee(PortableEngine(bundle)).run(shop.request()).candidate
    engine = PortableEngine(bundle)
    shop.champion = first
    trainee = shop.trainee(engine)
    start = engine.parameters()
    x, labels = task(300, 1)
    shop.feed(x, [2.0 - float(str(label)) for label in labels])
    second = trainee.run(shop.request()).candidate
    end = engine.parameters()
    weights = sum(float(((end[name] - start[name]) ** 2).sum()) for name in bundle.trainable)
    answers = [InferenceModel(path / "model.onnx").predict(PROBE) for path in (first, second)]
    return weights, float(np.abs(answers[0] - answers[1]).mean())


@pytest.mark.parametrize(("guide", "weight"), [("l2sp", 1.0), ("ewc", 10.0)])
def test_an_anchor_keeps_the_weights_near_the_champions(
    tmp_path: Path, bundle: Bundle, guide: str, weight: float
) -> None:
    free = moved(tmp_path / "free", bundle, "none", 0.0)
    held = moved(tmp_path / "held", bundle, guide, weight)
    assert held[0] < 0.5 * free[0]


def test_a_teacher_keeps_the_answers_near_the_champions(tmp_path: Path, bundle: Bundle) -> None:
    free = moved(tmp_path / "free", bundle, "none", 0.0)
    held = moved(tmp_path / "held", bundle, "distill", 10.0)
    assert held[1] < 0.6 * free[1]


def test_how_much_weights_matter_is_learned_with_them(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle, guide="ewc")
    shop.feed(*task(300))
    engine = PortableEngine(bundle)
    assert all((value == 1).all() for value in engine.importance().values()), "nothing is known at first"
    shop.trainee(engine).run(shop.request())
    importance = engine.importance()
    assert set(importance) == set(bundle.trainable)
    values = np.concatenate([value.ravel() for value in importance.values()])
    assert values.mean() == pytest.approx(1.0, rel=1e-3)
    assert values.min() >= 0
    assert values.max() > 3 * np.median(values)


def test_without_a_champion_nothing_guides(tmp_path: Path, bundle: Bundle) -> None:
    weights = []
    for guide in ("none", "distill", "l2sp"):
        shop = Workshop(tmp_path / guide, bundle, guide=guide, guide_weight=5.0)
        shop.feed(*task(200))
        engine = PortableEngine(bundle)
        shop.trainee(engine).run(shop.request())
        weights.append(engine.parameters())
    for other in weights[1:]:
        for name, value in other.items():
            np.testing.assert_allclose(value, weights[0][name], rtol=1e-3, atol=1e-4)


def test_the_native_engine_says_at_once_that_it_cannot(tmp_path: Path, bundle: Bundle) -> None:
    shop: Any = Workshop(tmp_path, bundle, guide="l2sp")
    with pytest.raises(UnavailableError, match="portable"):
        shop.trainee(NativeEngine(bundle))
