"""Sections of the page for streams of every kind, without a device: correct HTML, and the right words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edged.charts.figures import age, size
from edged.device.learning.label_reviews import CheckedLabel
from edged.device.reports import (
    DriftStatus,
    FlashPace,
    Health,
    ModelStatus,
    Report,
    StreamStatus,
    TrainingStatus,
)
from edged.device.web.page.history import Sensor
from edged.device.web.page.sections import SECTIONS, report
from edged.device.web.page.snapshot import Snapshot
from edged.device.web.page.timeline import NARROW, WIDE, timeline
from edged.domain.events import DaemonStarted, Event, LabelRequested, ModelPromoted
from edged.domain.judging.metrics import QualityFigures
from edged.domain.judging.verdict import Verdict
from edged.domain.messages.sent import EVENTS
from edged.domain.stream.anomaly import AlarmFigures
from edged.domain.stream.sample import StoredSample
from edged.domain.stream.schema import Schema
from edged.domain.text import DESCRIPTIONS, happening
from edged.domain.training.trainer_messages import RunProgress, SuspectLabel
from edged.domain.training.training_run import ModelData
from edged.host.vitals import BoardVitals, Vitals
from edged.storage.models.records import ModelFigures, ModelRecord, Reign
from edged.storage.outbox.tables import OutboxBacklog
from edged.storage.samples.reader import Counters
from tests.device.web.test_page import HOSTILE, Checker

CLASSIFY = Schema(("temp", "vib"), 2, "classify", ("ok", "worn"))
MANY = Schema(("temp",), 1, "classify", tuple(f"class {i}" for i in range(20)))
REGRESS = Schema(("temp",), 1, "regress", target_units=("mm",))
PAIR = Schema(("temp",), 1, "regress", targets=2)
RECONSTRUCT = Schema(("temp",), 1, "reconstruct", targets=1)
NOW = 1_800_000_000.0
STATUS = StreamStatus(
    state="online", problem=None, health=Health("ok", ()), on_hold=(), ts=NOW, uptime_s=90.0, version="1",
    boot=1, samples=5, labels=2, quarantined=1, evicted=0, engine="portable", stuck=1,
    model=ModelStatus(2, NOW, 1, pinned=False, quality=QualityFigures(0.25, 2, None, False), missing=None),
    drift=DriftStatus(0, None),
    training=TrainingStatus(
        runs=1, last=None, progress=RunProgress(2, 3, 10, 0.5), paused=None, waiting_for=("quiet hours",),
        summary=None, summary_ts=None,
    ),
    outbox=OutboxBacklog(0, 0, 0), host=BoardVitals(), flash=FlashPace(), audit=None,
)  # fmt: skip


_SAMPLE = StoredSample(7, HOSTILE, NOW, np.array([1.5], np.float32), 0)
SUSPECTS = (NOW, 1200, [CheckedLabel("1-7", _SAMPLE, SuspectLabel(7, 0, 1, 0.02, 0.97))])


def sensor(heard: float, pause: float, output: list[float]) -> Sensor:
    made = Sensor(heard)
    made.pause, made.count, made.output, made.label, made.confidence = pause, 3, output, 1, 0.75
    return made


def event(happened: Event) -> Report:
    return Report("events", happened, NOW, seq=1, boot=1)


def view(schema: Schema, **more: Any) -> Snapshot:
    request = LabelRequested(HOSTILE, HOSTILE, NOW, (1.0,), 1, random=False, answer=(0.5, 0.25))
    record = ModelRecord(
        2, 1, NOW, "training", 1, 1, ModelData(), ModelFigures(), Verdict(True, (HOSTILE,)), "champion"
    )
    first = replace(record, version=1, parent=None, source="bundle", verdict=None, status="good")
    made: dict[str, Any] = {
        "device": HOSTILE, "schema": schema, "now": NOW, "monotonic": 1000.0,
        "may_label": True, "may_control": True, "limit": 8192,
        "status": STATUS, "counters": Counters(5, 2, 0, 0, 1, 0, 5, 0, 6, 3, 0, bytes=4096),
        "new_labelled": 1, "needed": 40, "label_share": 0.4, "anomaly": None, "vitals": Vitals(),
        "refused": {HOSTILE: 1}, "models": [record, first], "parents": {2: 1, 1: None},
        "reigns": [Reign(NOW, 2, 1, "", None)], "runs": [], "marks": [(NOW - 50, "drift", HOSTILE)],
        "points": [(NOW - 100.0, 0.5, None), (NOW, 0.25, 0.5)],
        "events": [event(DaemonStarted(1, HOSTILE, 2, HOSTILE, ()))],
        "requests": [request], "suspects": SUSPECTS if schema.classes else (None, 0, []),
        "evaluations": [], "stuck": {"b": [HOSTILE]}, "forgotten": 2,
        "connected": True,
        "sensors": {HOSTILE: sensor(0.0, 1.0, [0.5]), "b": sensor(999.0, 1.0, [0.5, 0.25])},
    }  # fmt: skip
    return Snapshot(**made | more)


@pytest.mark.parametrize("schema", [CLASSIFY, MANY, REGRESS, PAIR, RECONSTRUCT])
def test_every_section_of_every_kind_of_stream_is_correct(schema: Schema) -> None:
    anomaly = AlarmFigures(None, 3, 1, (HOSTILE,)) if schema is RECONSTRUCT else None
    seen = view(schema, anomaly=anomaly)
    for name, (_, section) in SECTIONS.items():
        page = Checker(section(seen))
        assert "img" not in page.tags, name
    assert "<img" not in report(seen)
    assert "<button" not in report(seen)


def text(name: str, seen: Snapshot) -> str:
    return Checker(SECTIONS[name][1](seen)).text


def test_it_says_what_is_wrong() -> None:
    told = text("health", view(CLASSIFY, connected=False))
    assert "Needs attention" in told
    assert "1 feature stuck" in told
    assert "no data from <img" in told
    assert "Broker not connected" in told
    well = view(CLASSIFY, sensors={}, status=replace(STATUS, stuck=0))
    assert "Healthy" in text("health", well)


def test_it_says_how_much_learning_brings() -> None:
    assert "Error 0.25; 0.5 without learning (0.25 better)" in text("quality", view(REGRESS))
    points = [(NOW - 9.0, 0.5, 0.5), (NOW, 0.6, 0.75)]
    seen = view(CLASSIFY, points=points)
    told = text("quality", seen)
    assert "Accuracy 60.0 %; 75.0 % without learning (15.0 points worse)" in told
    empty = view(CLASSIFY, points=[(NOW, None, 0.5)], counters=replace(seen.counters, labels=0))
    assert "No labels yet." in text("quality", empty)


@pytest.mark.parametrize(("choices", "said"), [([0, 1], "{} or {}"), ([1], "{1}"), ([], "Too uncertain")])
def test_a_prediction_is_shown_as_the_classes_of_its_set(choices: list[int], said: str) -> None:
    made = sensor(999.0, 1.0, [0.5, 0.5])
    made.choices = choices
    told = text("predictions", view(CLASSIFY, sensors={"b": made}))
    assert f"b{said.format(*CLASSIFY.classes)}75.0 %" in told


def test_an_untrained_model_says_what_it_lacks() -> None:
    lacks = replace(STATUS, model=replace(STATUS.model, missing="7 of 20 labels"))
    assert "Untrained" not in text("model", view(CLASSIFY))
    assert "7 of 20 labels so far" in text("model", replace(view(CLASSIFY), status=lacks))


def test_lineage_verdicts_and_progress_are_shown() -> None:
    told = text("model", view(CLASSIFY))
    assert "2 ← 1" in told
    assert f"Accepted: {HOSTILE}" in told
    assert "Step 3 of 10, loss 0.5" in text("training", view(CLASSIFY))
    assert "0.5 mm" in text("predictions", view(REGRESS))
    assert "2 more keys not shown" in text("predictions", view(REGRESS))


def test_buttons_are_for_those_who_may() -> None:
    looks = view(CLASSIFY, may_label=False, may_control=False)
    for name, (_, section) in SECTIONS.items():
        assert "data-command" not in section(looks), name
    infers = view(CLASSIFY, may_label=True, may_control=False)
    assert 'data-command="label"' in SECTIONS["requests"][1](infers)
    assert "data-command" not in SECTIONS["actions"][1](infers)
    assert "<option>class 3</option>" in SECTIONS["requests"][1](view(MANY))
    assert 'type="number"' in SECTIONS["requests"][1](view(REGRESS))
    assert "use the label command" in text("requests", view(PAIR))


def test_a_chart_stays_within_its_picture() -> None:
    points = [(NOW - 5000 + i, 0.5 + (i % 7) / 100, None) for i in range(5000)]
    for picture in (WIDE, NARROW):
        drawn = timeline(points, [(NOW - 10**6, "swap", "too old")], NOW, str, picture)
        assert "too old" not in drawn
        line = drawn.partition('class="line live" points="')[2].partition('"')[0]
        at = [tuple(map(float, pair.split(","))) for pair in line.split(" ")]
        assert len(at) <= picture.width // 3 * 2
        assert all(0 <= x <= picture.width and 0 <= y <= picture.height for x, y in at)


def test_numbers_are_as_people_read_them() -> None:
    assert [age(s) for s in (0.05, 3.0, 61.0, 7200.0, 200000.0)] == ["0.1 s", "3 s", "1 min", "2 h", "2.3 d"]
    assert [size(b) for b in (None, 0, 999, 1e9)] == ["–", "0 B", "999 B", "1.0 GB"]


def test_every_event_of_the_contract_has_a_line() -> None:
    assert set(DESCRIPTIONS) <= set(EVENTS)
    assert happening({"event": "clock_set", "ts": 0.0, "step_s": 61.5, "before": 3.0}) == (
        "clock set: step_s 61.5, before 3"
    )
    drift = {"event": "drift_detected", "ts": 0.0, "level": "drift", "detector": "ks", "source": "inputs",
             "offset": 1200, "features": [{"feature": f"f{i}"} for i in range(6)]}  # fmt: skip
    assert happening(drift) == "Drift in inputs at sample 1,200 (ks): f0, f1, f2, f3 and 2 more"


def test_labels_to_check_are_chosen_by_who_may_label() -> None:
    told = text("suspects", view(CLASSIFY))
    assert "1,200 labels" in told
    assert f"{CLASSIFY.classes[1]}, 97\xa0% sure" in told
    assert HOSTILE in told
    assert 'value="1-7"' in SECTIONS["suspects"][1](view(CLASSIFY))
    looks = view(CLASSIFY, may_label=False, may_control=False)
    assert "<input" not in SECTIONS["suspects"][1](looks)
    assert "data-may" not in SECTIONS["map"][1](looks)
    none = view(CLASSIFY, suspects=(NOW, 1200, []))
    assert "None of those left contradicts it" in text("suspects", none)
    assert SECTIONS["suspects"][1](view(CLASSIFY, suspects=(None, 0, []))) == ""
    assert SECTIONS["map"][1](view(CLASSIFY, suspects=(None, 0, []))) == ""


def test_after_a_restart_the_page_goes_on_with_what_it_knew() -> None:
    """Labels are stored, but live quality begins anew: nothing is said to be missing that is there."""
    quality = QualityFigures(None, 0, None, of_classes=True)
    restarted = replace(STATUS, model=replace(STATUS.model, quality=quality))
    points = [(NOW - 900.0, None, 0.7), (NOW - 600.0, 0.9, 0.7), (NOW, None, 0.7)]
    seen = view(CLASSIFY, status=restarted, points=points)
    assert "Accuracy 90.0 %; 70.0 % without learning (20.0 points better), before the restart." in text(
        "quality", seen
    )
    assert "after the next labels" in text("model", seen)
    for name in ("quality", "model", "learned"):
        assert "–" not in SECTIONS[name][1](seen).partition("<table")[0], name
    drawn = SECTIONS["quality"][1](seen).partition('class="line frozen" points="')[2].partition('"')[0]
    assert len(drawn.split()) == 1  # the initial model, where there was live quality to compare it with
    assert "the next one continues the chart" in text("quality", view(CLASSIFY, points=points[:1]))


def test_what_labels_did_is_said_in_words_with_the_numbers_behind_them() -> None:
    numbers = {"holdout": 100.0, "candidate_error": 0.03}
    verdict = Verdict(True, (), numbers)
    promoted = event(ModelPromoted(2, 1, "", f"Learned {HOSTILE}.", verdict))
    free = replace(STATUS.training, progress=None, waiting_for=())
    training = replace(free, summary=f"Learned {HOSTILE}.", summary_ts=NOW)
    seen = view(CLASSIFY, status=replace(STATUS, training=training), events=[promoted])
    told = text("learned", seen)
    assert told.startswith(f"Learned {HOSTILE}.")
    assert "The next training starts with 40 new labels: 1 so far." in told
    assert "candidate error0.03" in told
    assert f"Learned {HOSTILE}." in text("events", seen)
    first = view(CLASSIFY, status=replace(STATUS, training=free), counters=Counters(*[0] * 12))
    assert text("learned", first).startswith("No samples yet.")
