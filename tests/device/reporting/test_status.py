"""What the daemon says of the wear of its flash."""

import pytest

from edged.cli.output import show_status
from edged.device.reports import PACE_SECONDS, FlashPace

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
