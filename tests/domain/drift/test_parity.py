"""ADWIN sees what river's sees, at the same readings."""

import json

import pytest

from edged.domain.drift.adwin import ADWIN
from edged.domain.drift.signals import Level
from tests.domain.drift.make_reference import REFERENCE, SEEDS
from tests.domain.drift.streams import KINDS, stream

FOUND: dict[str, list[list[int]]] = json.loads(REFERENCE.read_text())["drifts"]


@pytest.mark.parametrize("kind", KINDS)
def test_drifts_are_seen_where_river_sees_them(kind: str) -> None:
    assert len(FOUND[kind]) == SEEDS == 20
    for seed, reference in enumerate(FOUND[kind]):
        detector = ADWIN(block=0)
        seen = [at for at, v in enumerate(stream(kind, seed)) if detector.update(v) is Level.DRIFT]
        assert seen == reference, seed


def test_the_reference_has_something_to_say() -> None:
    changed = FOUND["abrupt"] + FOUND["gradual"]
    assert sum(map(bool, changed)) > len(changed) // 2
