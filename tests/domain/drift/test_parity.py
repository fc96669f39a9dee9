"""The streaming detectors see what river's see, at the same readings."""

import json
from typing import Any

import pytest

from edged.domain.drift import ADWIN, DDM, HDDMW, Level, PageHinkley
from edged.domain.drift.signals import StreamDetector
from tests.domain.drift.make_reference import REFERENCE, SEEDS, spans
from tests.domain.drift.streams import KINDS, stream

FOUND: dict[str, dict[str, list[dict[str, Any]]]] = json.loads(REFERENCE.read_text())["found"]


def levels(detector: Any, readings: Any) -> list[Level]:
    return [detector.update(reading) for reading in readings]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [ADWIN, PageHinkley, DDM, HDDMW])
def test_drifts_are_seen_where_river_sees_them(make: type[StreamDetector], kind: str) -> None:
    expected = FOUND[make.name][kind]
    assert len(expected) == SEEDS == 20
    for seed, reference in enumerate(expected):
        seen = levels(make(), stream(make.name, kind, seed))
        assert [at for at, level in enumerate(seen) if level is Level.DRIFT] == reference["drifts"], seed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [DDM, HDDMW])
def test_warnings_are_given_where_river_gives_them(make: type[StreamDetector], kind: str) -> None:
    for seed, reference in enumerate(FOUND[make.name][kind]):
        seen = levels(make(), stream(make.name, kind, seed))
        assert spans([i for i, v in enumerate(seen) if v is Level.WARNING]) == reference["warnings"], seed


def test_the_reference_has_something_to_say() -> None:
    for found in FOUND.values():
        changed = found["abrupt"] + found["gradual"]
        assert sum(bool(reference["drifts"]) for reference in changed) > len(changed) // 2
