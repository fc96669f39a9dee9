"""A trainer that stays in memory learns from labels as people have corrected them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.storage.samples.label_history import LabelHistory
from tests.device.learning_rig import CLASSIFY, RecordingEngine, Workshop, task

if TYPE_CHECKING:
    from edged.domain.protocols import StepResult
    from edged.storage.models.bundles import Bundle
    from edged.storage.samples.label_actions import LabelAction
    from tests.device.learning_rig import Floats

FIRST = 1.7e9


class LabelledEngine(RecordingEngine):
    """The usual engine, keeping the label of every row, too."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle)
        self.labels: dict[bytes, set[float]] = {}

    def step(self, x: Floats, y: Any, **more: Any) -> StepResult:
        for row, label in zip(x, np.asarray(y).reshape(len(x), -1)[:, 0].tolist(), strict=True):
            self.labels.setdefault(row.tobytes(), set()).add(float(label))
        return super().step(x, y, **more)


def test_no_run_learns_from_a_label_of_before(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path / "state", bundle, new_share=0.25)
    engine, history = LabelledEngine(bundle), LabelHistory(shop.log, CLASSIFY, 1 << 20)
    x, labels = task(400)
    shop.feed(x, labels)
    trainee = shop.trainee(engine)

    def learned(seed: int) -> dict[int, float]:
        """What the next run was given of the first samples, by position; each with one label."""
        shop.feed(*task(100, seed=seed))
        engine.labels = {}
        trainee.run(shop.request())
        found = {
            at: engine.labels[row.tobytes()] for at, row in enumerate(x) if row.tobytes() in engine.labels
        }
        assert all(len(some) == 1 for some in found.values())
        return {at: some.pop() for at, some in found.items()}

    def say(name: str, first: int, last: int, label: float | None) -> None:
        finish(history.begin_interval(name, "m", FIRST + first + 1, FIRST + last + 1, label, 2e9))

    def finish(action: LabelAction) -> None:
        while action.open:
            history.go_on(action)

    before = learned(1)
    assert len(before) > 200
    assert before == {at: labels[at] for at in before}
    say("correction", 0, 199, 2.0)
    say("none", 300, 399, None)
    corrected = learned(2)
    assert len(corrected) > 150
    assert corrected == {at: 2.0 if at < 200 else labels[at] for at in corrected}
    assert not any(at >= 300 for at in corrected)
    finish(history.begin_undo(2, "undo none"))
    finish(history.begin_undo(1, "undo correction"))
    again = learned(3)
    assert len(again) > 200
    assert again == {at: labels[at] for at in again}
    assert any(at >= 300 for at in again)
