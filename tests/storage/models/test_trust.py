"""What a device remembers of trust: exactly once, in order, and never in the way of a start."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from edged.errors import RefusedError
from edged.signing import key_id, new_pair, parse_public
from edged.storage.models.trust import FILE, MOST_OPENED, Trust


def test_any_damage_is_survived_and_what_follows_is_remembered(tmp_path: Path) -> None:
    Trust(tmp_path).record_opened("a", 7, "key")
    whole = (tmp_path / FILE).read_bytes()
    rng = random.Random(1)
    for _ in range(300):
        broken = bytearray(whole)
        for _ in range(rng.randint(1, 200)):
            broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        (tmp_path / FILE).write_bytes(broken)
        found = Trust(tmp_path)
        assert not found.new
        assert found.opened("a") in (None, 7)  # two flips of one bit are none
        found.record_opened("b", 8, "key")
        assert Trust(tmp_path).least_version("configured", ["key"]) == 8


def test_versions_by_key_and_by_way(tmp_path: Path) -> None:
    trust = Trust(tmp_path)
    trust.record_opened("a", 5, "k")
    trust.record_installed("k", 7)
    trust.record_installed("k", 6)
    trust.record_installed("stolen", 2**40)
    again = Trust(tmp_path)
    assert again.least_version("configured", ["k"]) == 5
    assert again.least_version("installed", ["k"]) == 7
    again.forget_versions()
    assert Trust(tmp_path).least_version("installed", ["k", "stolen"]) == 0


def test_the_newest_opened_bundles_are_remembered(tmp_path: Path) -> None:
    trust = Trust(tmp_path)
    for number in range(MOST_OPENED + 1):
        trust.record_opened(str(number), number, "")
    assert Trust(tmp_path).opened("0") is None
    assert Trust(tmp_path).opened(str(MOST_OPENED)) == MOST_OPENED


def test_a_key_is_followed_to_its_last_successor(tmp_path: Path) -> None:
    for name in "abc":
        new_pair(tmp_path / name)
    ids = {name: key_id(tmp_path / f"{name}.pub") for name in "abc"}
    files = [tmp_path / "a.pub"]
    trust = Trust(tmp_path / "state")
    (tmp_path / "state").mkdir()
    for old, new in ("ab", "bc"):
        trust.replace_key(ids[old], parse_public((tmp_path / f"{new}.pub").read_text(), "new"))
    (current,) = Trust(tmp_path / "state").current(files)
    assert key_id(current) == ids["c"]
    with pytest.raises(RefusedError, match="before"):
        trust.replace_key(ids["c"], parse_public((tmp_path / "a.pub").read_text(), "new"))
    trust.replace_key(ids["c"], None)
    assert Trust(tmp_path / "state").current(files) == []
