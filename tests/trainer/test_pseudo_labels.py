"""Samples without a label that the champion is sure of are learned from, where that is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.domain.stream.holdout import is_holdout
from edged.domain.stream.sample import LabelUpdate
from edged.engines.inference import InferenceModel
from edged.engines.native.engine import NativeEngine
from edged.engines.portable.engine import PortableEngine
from edged.trainer import InterruptedRunError
from tests.device.learning_rig import RecordingEngine, Workshop, after, model_bytes, rows, task, weights

if TYPE_CHECKING:
    from edged.domain.protocols import StepResult
    from edged.storage.models.bundles import Bundle

LONG = {"steps": 400, "max_steps": 400, "average": 0.0}


class Pairs(NativeEngine):
    """The native engine, keeping which rows it was given with which labels."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle)
        self.pairs: set[tuple[bytes, float]] = set()

    def step(self, x: Any, y: Any, *, apply: bool = True, careful: bool = False) -> StepResult:
        self.pairs |= {(row.tobytes(), float(label)) for row, label in zip(x, y, strict=True)}
        return super().step(x, y, apply=apply, careful=careful)


class Few:
    """A champion that has learned from 700 labels, then 500 samples of which 40 have one."""

    def __init__(self, folder: Path, bundle: Bundle) -> None:
        settings: dict[str, Any] = LONG
        self.shop = Workshop(folder, bundle, **settings)
        self.shop.feed(*task(700))
        self.champion = Path(self.shop.trainee().run(self.shop.request())["candidate"])
        self.x, self.labels = task(500, 1)
        self.offsets = self.shop.feed(self.x)
        self.shop.label(self.offsets[:40], self.labels[:40])
        self.bare = rows(self.x[40:])

    def trainee(self, engine: Any, pseudo: float, **options: Any) -> Any:
        return self.shop.trainee(engine, champion=lambda: self.champion, pseudo=pseudo, **options)


def test_part_of_a_batch_is_of_them(tmp_path: Path, bundle: Bundle) -> None:
    few = Few(tmp_path, bundle)
    engine = RecordingEngine(bundle)
    few.trainee(engine, 0.25).run(few.shop.request())
    seen = np.concatenate(engine.seen)
    share = sum(row.tobytes() in few.bare for row in seen) / len(seen)
    assert share == pytest.approx(0.25, abs=0.01)
    held = few.x[is_holdout(few.offsets, 0.1)]
    assert not rows(held) & rows(seen)


def test_none_without_the_option_and_none_without_a_champion(tmp_path: Path, bundle: Bundle) -> None:
    few = Few(tmp_path, bundle)
    engine = RecordingEngine(bundle)
    few.trainee(engine, 0.0).run(few.shop.request())
    assert not few.bare & engine.trained_on()
    few.shop.trainee(engine, pseudo=0.25).run(few.shop.request("command"))
    assert not few.bare & engine.trained_on()


def test_they_are_labelled_as_the_champion_would_and_only_where_it_is_sure(
    tmp_path: Path, bundle: Bundle
) -> None:
    few = Few(tmp_path, bundle)
    engine = RecordingEngine(bundle)
    few.trainee(engine, 0.25).run(few.shop.request())
    used = few.bare & engine.trained_on()
    made = InferenceModel(few.champion / "model.onnx").predict(few.x).argmax(axis=1)
    right = [made[i] == few.labels[i] for i in range(40, 500) if few.x[i].tobytes() in used]
    every = (made == np.asarray(few.labels, np.float64)).mean()
    assert 40 < len(used) < 414
    assert np.mean(right) > max(0.93, every)


def test_a_true_label_takes_their_place(tmp_path: Path, bundle: Bundle) -> None:
    few = Few(tmp_path, bundle)
    few.trainee(NativeEngine(bundle), 0.25).run(few.shop.request())
    turned = [(float(str(label)) + 1) % 3 for label in few.labels]
    few.shop.log.commit(
        None, [LabelUpdate(int(o), y, 0.0) for o, y in zip(few.offsets[40:], turned[40:], strict=True)]
    )
    assert len(few.shop.log.unlabelled(1000)) == 0
    engine = Pairs(bundle)
    few.trainee(engine, 0.25).run(few.shop.request())
    true = {row.tobytes(): label for row, label in zip(few.x[40:], turned[40:], strict=True)}
    learned = [(row, label) for row, label in engine.pairs if row in true]
    assert len(learned) > 300
    assert all(true[row] == label for row, label in learned)


@pytest.mark.parametrize(("kind", "calls"), [(NativeEngine, 33), (PortableEngine, 4)])
def test_a_stopped_run_ends_with_the_same_bits(tmp_path: Path, bundle: Bundle, kind: Any, calls: int) -> None:
    ends = []
    for name, stops in (("straight", []), ("stopped", [calls, 1])):
        few = Few(tmp_path / name, bundle)
        for steps in stops:
            with pytest.raises(InterruptedRunError):
                few.trainee(kind(bundle), 0.25, stopping=after(steps)).run(few.shop.request())
            few.shop.feed(task(50, 5)[0])  # what comes in between is not of this run
        engine = kind(bundle)
        result = few.trainee(engine, 0.25).run(few.shop.request())
        ends.append((weights(engine), result["memory"], model_bytes(result)))
    assert ends[0] == ends[1]
