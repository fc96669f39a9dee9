from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import pytest

from edged.domain.stream.sample import LabelReading
from tests.storage.stream import START, batch, find, open_log

if TYPE_CHECKING:
    from edged.storage.samples.log import SampleLog


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SampleLog]:
    with open_log(tmp_path) as opened:
        for first in range(1, 40_001, 4000):
            opened.commit(batch(first, 4000, ids=True, keys=2))
        yield opened


@pytest.mark.parametrize("offset", [1, 8191, 8192, 16_384, 39_999, 40_000])
def test_a_sample_is_found_by_its_id_wherever_it_lies(log: SampleLog, offset: int) -> None:
    assert find(log, id=f"id-{offset}") == offset


def test_an_unknown_id_is_not_found(log: SampleLog) -> None:
    assert find(log, id="nobody") is None
    assert find(log) is None
    assert find(log, key="m1") is None


def test_of_equal_ids_the_newest_is_meant(log: SampleLog) -> None:
    again = batch(40_001, 1)
    again.ids.append("id-7")
    log.commit(again)
    assert find(log, id="id-7") == 40_001


def test_equal_checksums_of_different_ids_do_no_harm(log: SampleLog) -> None:
    first, second = "plumless", "buckeroo"  # a pair that CRC-32 is known to confuse
    assert crc32(first.encode()) == crc32(second.encode())
    stored = batch(40_001, 2)
    stored.ids.extend([first, None])
    log.commit(stored)
    assert find(log, id=first) == 40_001
    assert find(log, id=second) is None


def test_a_sample_is_found_by_the_nearest_time_of_its_key(tmp_path: Path, log: SampleLog) -> None:
    assert find(log, key="m1", ts=START + 101) == 101
    assert find(log, key="m1", ts=START + 101.4) == 101
    assert find(log, key="m1", ts=START + 100.6) == 101
    assert find(log, key="m1", ts=START + 102) is None
    assert find(log, key="m9", ts=START + 101) is None
    with open_log(tmp_path, tolerance=1.0) as wide:
        assert find(wide, key="m1", ts=START + 102.1) == 103
        assert find(wide, key="m1", ts=START + 102) == 101


def test_times_can_be_joined_by_a_reader_too(tmp_path: Path, log: SampleLog) -> None:
    with open_log(tmp_path, readonly=True) as reader:
        assert find(reader, key="m1", ts=START + 101) == 101


def test_many_labels_find_their_samples_at_once(tmp_path: Path, log: SampleLog) -> None:
    readings = [
        LabelReading(1.0, id="id-5"),
        LabelReading(1.0, key="m0", ts=START + 20.2),
        LabelReading(1.0, id="nobody"),
        LabelReading(1.0, key="m0"),
    ]
    assert log.find_many(readings) == [5, 20, None, None]
    with open_log(tmp_path, tolerance=0.1) as narrow:
        assert narrow.find_many(readings) == [5, None, None, None]


def test_samples_that_come_after_the_first_join_are_found(log: SampleLog) -> None:
    assert find(log, key="m1", ts=START + 101) == 101
    log.commit(batch(40_001, 10, keys=2))
    assert find(log, key="m1", ts=START + 40_003) == 40_003
