"""What the daemon says of the wear of its flash and of its quality, and how its status is read."""

import pytest

from edged.cli.output import show_status
from edged.device.reports import PACE_SECONDS, DriftStatus, FlashPace, QualityState, StreamStatus
from edged.domain.drift.signals import DriftSignal, FeatureShift, Level
from edged.domain.judging.metrics import QualityFigures

COUNTS = {"samples": 100, "labels": 0, "evicted": 0, "quarantined": 0}
STATUS = COUNTS | {
    "state": "online",
    "model": {"version": 1, "since": None, "quality": None},
    "training": {"runs": 0, "last": None},
    "outbox": {"pending": 0, "dropped": 0},
    "engine": "portable",
}


def shown(capsys: pytest.CaptureFixture[str], seconds: float, written: int | None = 6_000_000) -> str:
    show_status(STATUS | {"flash": FlashPace.of(written, 100, seconds).to_json()})
    return capsys.readouterr().out


def test_a_day_is_not_extrapolated_from_the_first_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    assert "6.0 MB written since startup, 60.0 kB per sample" in shown(capsys, 10.0)
    assert "6.0 MB written, 144.0 MB per day, 60.0 kB per sample" in shown(capsys, PACE_SECONDS)


def test_where_the_kernel_does_not_count_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert FlashPace.of(None, 100, PACE_SECONDS) == FlashPace(None, None, None)
    assert "flash" not in shown(capsys, 10.0, None)


def test_the_state_of_quality_changes_with_what_it_shows() -> None:
    live = QualityFigures(0.123412, 9, 0.5, of_classes=True, coverage=0.9, sets=True)
    state = QualityState.of(3, live)
    assert list(state.to_json().items()) == [("version", 3), ("accuracy", 0.1234), ("labelled", 9)]
    assert QualityState.of(3, QualityFigures(0.123413, 9, 0.6, of_classes=True)) == state
    assert QualityState.of(3, QualityFigures(0.123412, 10, 0.5, of_classes=True)) != state


@pytest.mark.parametrize(
    "live",
    [
        QualityFigures(0.5, 9, None, of_classes=True),
        QualityFigures(None, 0, 0.5, of_classes=False),
        QualityFigures(0.5, 9, 0.25, of_classes=True, coverage=None, sets=True),
    ],
)
def test_a_status_is_read_as_it_was_told(live: QualityFigures) -> None:
    shift = FeatureShift("temp", Level.WARNING, 0.4321, 0.00123, 0.25)
    drift = DriftStatus(2, DriftSignal(Level.DRIFT, "ks_psi", "inputs", 0.5, 0.25, 7, (shift,)))
    read = StreamStatus.from_json(
        {"model": {"version": 3, "quality": live.to_json()}, "drift": drift.to_json()}
    )
    assert read.model.quality == live
    assert read.drift == drift
