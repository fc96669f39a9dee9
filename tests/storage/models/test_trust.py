"""What a device remembers of trust: exactly once, in order, and never in the way of a start."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from edged.errors import RefusedError, StorageError
from edged.signing import key_id, new_pair, parse_public
from edged.storage.models.trust import COPY, FILE, MOST_OPENED, Trust


def broken(rng: random.Random, whole: bytes) -> bytes:
    """With 1 to 200 bits flipped."""
    content = bytearray(whole)
    for _ in range(rng.randint(1, 200)):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


def remembered(folder: Path) -> Trust:
    """With a bundle of version 7."""
    folder.mkdir()
    trust = Trust(folder)
    trust.record_opened("a", 7, "key")
    return trust


@pytest.mark.parametrize("name", [FILE, COPY])
def test_one_damaged_or_missing_file_loses_nothing_and_is_written_again(tmp_path: Path, name: str) -> None:
    remembered(tmp_path / "state")
    file, rng = tmp_path / "state" / name, random.Random(1)
    whole = file.read_bytes()
    for number in range(300):
        file.write_bytes(broken(rng, whole)) if number else file.unlink()
        found = Trust(tmp_path / "state")
        assert (found.lost, found.opened("a")) == (False, 7)
        found.repair()
        assert file.read_bytes() == whole


def test_two_damaged_files_are_survived_and_said_until_somebody_answers_for_it(tmp_path: Path) -> None:
    remembered(tmp_path / "state")
    files, rng = [tmp_path / "state" / name for name in (FILE, COPY)], random.Random(1)
    whole = files[0].read_bytes()
    for _ in range(300):
        for file in files:
            file.write_bytes(broken(rng, whole))
        with capture_logs() as told:
            found = Trust(tmp_path / "state")
        if not found.lost:  # two flips of one bit are none
            assert found.opened("a") == 7
            continue
        assert [entry["event"] for entry in told] == ["trust_lost"]
        assert found.opened("a") is None
        found.repair()
        found.record_opened("b", 8, "key")
        again = Trust(tmp_path / "state")
        assert again.least_version("configured", ["key"]) == 8
        assert again.lost
        again.forget_versions()
        assert not Trust(tmp_path / "state").lost


def test_a_disk_that_refuses_keeps_the_file_that_is_whole(tmp_path: Path) -> None:
    remembered(tmp_path / "state")
    (tmp_path / "state" / FILE).unlink()
    (tmp_path / "state" / FILE).mkdir()  # nothing can take its place
    with pytest.raises(StorageError):
        Trust(tmp_path / "state")
    (tmp_path / "state" / FILE).rmdir()
    found = Trust(tmp_path / "state")
    (tmp_path / "state" / FILE).mkdir()
    with capture_logs() as told:
        found.repair()
    assert [entry["event"] for entry in told] == ["trust_not_repaired"]


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
