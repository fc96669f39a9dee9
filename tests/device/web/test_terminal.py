"""The terminal and the page say the same, on 80 columns."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from typing import TYPE_CHECKING

import pytest

from edged.device.reports import LastRun, ModelStatus, StreamStatus, TrainingStatus
from edged.device.status_text import attention, last_run, notes, status_of, summary
from edged.domain.training.guards import TrainingPause
from edged.domain.training.trainer_messages import RunProgress
from edged.host.vitals import BoardVitals
from edged.storage.outbox.tables import OutboxBacklog
from tests.commands import edged
from tests.device.web.client import store

if TYPE_CHECKING:
    from tests.device.web.conftest import Site

WIDTH = 80
CHANGING = (
    "state",
    "flash",
    "temperature",
    "board",
)  # the process id, and what differs from second to second


def shown(*words: str) -> dict[str, str]:
    """The facts that a command prints on 80 columns, by name."""
    done = edged(*words, COLUMNS=str(WIDTH), NO_COLOR="1")
    assert done.code == 0, done.err
    lines = [line.rstrip() for line in done.out.splitlines()]
    assert max(map(len, lines)) <= WIDTH
    found: dict[str, str] = {}
    for line in lines[1:]:
        match = re.match(r"(\S.*?)? {2,}(\S.*)", line)
        if match is None:
            break  # what has happened, below the facts
        name, told = match[1], match[2]
        if name is None:
            found[[*found][-1]] += f" {told}"
        else:
            found[name] = told
    return found


@pytest.mark.slow
def test_status_watch_and_page_tell_the_same(still: Site) -> None:
    names = store(still.unix, [[0.1, 0.2]] * 5, "told")
    labels = [{"id": name, "label": "low"} for name in names]
    assert still.unix("POST", "/api/commands/label", {"labels": labels}).status == 200
    assert still.unix("POST", "/api/commands/train", {}).status < 300
    still.listener.wait(lambda: still.listener.events("training_finished"))
    still.device.stop()
    started = len(still.listener.messages["metrics"])
    still.device.start()  # what has been counted is counted on
    still.listener.wait(lambda: len(still.listener.messages["metrics"]) >= started + 3)
    page = still.unix("GET", "/api/page?only=quality,model,learned").json
    assert "No labels yet" not in page["quality"]
    assert "Learned from" in page["learned"]
    assert "–" not in (page["quality"] + page["learned"]).partition("<table")[0]
    broker = f"--broker=mqtt://127.0.0.1:{still.broker.port}"

    def differing() -> dict[str, tuple[str, ...]]:
        status = shown("status", str(still.device.path))
        watched = shown("ctl", broker, "watch", "still", "--seconds", "3")
        report = still.unix("GET", "/api/report").body.decode()
        page = {
            unescape(name): unescape(value)
            for name, value in re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", report.partition("</dl>")[0])
        }
        same = set(status) & set(watched) & set(page) - set(CHANGING)
        assert {"model", "live quality", "drift", "training", "samples", "labels", "quarantined", "outbox",
                "engine", "paused", "learned"} <= same  # fmt: skip
        assert not status["training"].startswith("0 runs")
        assert "Learned from" in status["learned"], "kept over the restart"
        told = {name: (status[name], watched[name], page[name]) for name in same}
        return {name: texts for name, texts in told.items() if len(set(texts)) > 1}

    for _ in range(12):  # each is told anew every second, not all at the same moment
        if not (found := differing()):
            return
    pytest.fail(f"they still differ: {found}")


def test_what_is_wrong_is_said_first() -> None:
    status = StreamStatus(
        state="degraded", problem="disk full", on_hold=("training",), samples=1, stuck=1,
        model=ModelStatus(2, parent=1, pinned=True),
        training=TrainingStatus(
            runs=1, paused=TrainingPause(3, "failed", "train", None), progress=RunProgress(2, 3, 10, 0.25),
            waiting_for=(),
        ),
        outbox=OutboxBacklog(0, 0, 0), host=BoardVitals(under_voltage=True, clock_synchronised=False),
    )  # fmt: skip
    assert attention(status) == [
        "disk full",
        "training paused: failed (train)",
        "1 feature stuck",
        "undervoltage",
    ]
    assert notes(status) == ["clock not synchronised: no time server found"]
    unset = attention(replace(status, ts=3600.0))
    assert unset[-1] == "the clock was not set since the device was switched on"
    lines = summary(status)
    assert list(lines)[:2] == ["state", "attention"]
    assert lines["model"] == "version 2 since –, parent 1, pinned"
    untrained = replace(status, model=ModelStatus(1, missing="7 of 20 labels"))
    assert summary(untrained)["model"] == "version 1 since –, untrained: 7 of 20 labels"
    assert lines["training"] == "1 run, running: run 2, step 3 of 10, loss 0.25"
    assert lines["drift"] == "none"


def test_a_device_that_has_not_told_enough_has_no_status() -> None:
    assert status_of({"status": {"state": "online"}}) is None


def test_a_status_of_an_earlier_version_is_shown_as_far_as_it_goes() -> None:
    told = {
        "state": "online", "samples": 5, "future": {"x": 1}, "outbox": {"pending": 2, "dropped": 1},
        "model": {"version": 3, "quality": {"error": 0.25, "labelled": 4}},
        "training": {"runs": 1, "last": {"id": 7, "trigger": "labels", "request": {}, "ended": None}},
        "drift": {"signals": 1, "last": {"level": "drift", "detector": "ddm", "source": "error",
                  "statistic": 1, "threshold": 0.5, "offset": 12}},
        "host": {"throttled": True, "fans": 2},
    }  # fmt: skip
    lines = summary(StreamStatus.from_json(told))
    assert lines["attention"] == "CPU throttled"
    assert lines["live quality"] == "error 0.25 over 4 labels"
    assert lines["last run"] == last_run(LastRun(7, "labels")) == "7 (labels): running"
    assert lines["drift"] == "1 signal, latest: drift in error at sample 12"
    assert lines["outbox"] == "2 waiting, 1 dropped"
    assert (lines["samples"], lines["labels"]) == ("5 received, 0 evicted", "0")
