"""Messages that wait on the disk: their order, their bounds, and what a crash or a full disk leaves."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from edged.clock import VirtualClock
from edged.domain.commands.delivery_policy import MessageKind, OutboxMessage
from edged.errors import StorageError
from edged.storage.files.database import connect
from edged.storage.outbox.queue import DATABASE, Outbox
from edged.storage.outbox.tables import Key, OutboxBacklog, waiting

if TYPE_CHECKING:
    Open = Callable[..., Outbox]

ROOT = Path(__file__).parents[3]
MIB = 1024**2
NOW = 1_770_000_000.0
DAY = 86_400.0


class Boxes:
    """Outboxes on one file and one clock, closed after the test."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / DATABASE
        self.clock = VirtualClock(NOW)
        self.opened: list[Outbox] = []

    def open(self, max_bytes: int = MIB, max_age: float = 7 * DAY) -> Outbox:
        box = Outbox.open(self.path, max_bytes=max_bytes, max_age=max_age, clock=self.clock)
        self.opened.append(box)
        return box

    def bytes(self) -> int:
        """On the disk, everything that belongs to it."""
        return sum(file.stat().st_size for file in self.path.parent.glob(f"{DATABASE}*"))


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Boxes]:
    made = Boxes(tmp_path)
    yield made
    for box in made.opened:
        box.close()


def parcel(kind: MessageKind, number: int, size: int = 60) -> OutboxMessage:
    payload = b'{"seq":%d}' % number
    topic = f"w/{number // 10}/{number % 10}" if kind is MessageKind.WEIGHTS else kind.name
    return OutboxMessage(kind, topic, payload + b" " * max(0, size - len(payload)))


def put(box: Outbox, parcels: Iterable[OutboxMessage]) -> list[Key | None]:
    rest, keys = [(p, False) for p in parcels], []
    while rest:
        new = box.put(rest)
        keys += new
        rest = rest[len(new) :]
    return keys


def drain(box: Outbox) -> list[tuple[MessageKind, int]]:
    """Everything that waits, in the order of being given out; it stays held."""
    found = []
    while taken := box.reserve(100, MIB):
        found += [(key.kind, int(p.payload.strip()[7:-1])) for key, p in taken]
    return found


# ---- order -----------------------------------------------------------------------------------------


def test_by_priority_then_by_age_over_a_restart(boxes: Boxes) -> None:
    box = boxes.open()
    kinds = list(MessageKind) * 50
    random.Random(0).shuffle(kinds)
    put(box, [parcel(kind, number) for number, kind in enumerate(kinds)])
    expected = [(kind, number) for kind in MessageKind for number, k in enumerate(kinds) if k is kind]
    assert drain(box) == expected
    assert box.takeable == 0
    box.close()
    box = boxes.open()
    assert drain(box) == expected, "what was only held waits again"
    assert box.waiting.pending == 200


def test_what_is_held_is_given_out_once_and_goes_when_it_is_removed(boxes: Boxes) -> None:
    box = boxes.open()
    held = box.put([(parcel(MessageKind.EVENT, 0), True), (parcel(MessageKind.EVENT, 1), False)])
    taken = box.reserve(10, MIB)
    assert [p.payload for _, p in taken] == [parcel(MessageKind.EVENT, 1).payload]
    assert (box.waiting.pending, box.takeable) == (2, 0)
    box.remove([key for key in held if key is not None])
    box.remove([taken[0][0]])
    assert box.waiting == OutboxBacklog(0, 0, 2 - 2)
    box.close()
    assert drain(boxes.open()) == []


def test_what_was_given_back_is_the_next_one_again(boxes: Boxes) -> None:
    box = boxes.open()
    put(box, [parcel(MessageKind.EVENT, number) for number in range(4)])
    taken = box.reserve(3, MIB)
    box.release(taken[1][0])
    box.release(taken[2][0])
    assert drain(box) == [(MessageKind.EVENT, 1), (MessageKind.EVENT, 2), (MessageKind.EVENT, 3)]


def test_a_newer_message_of_a_higher_kind_goes_first(boxes: Boxes) -> None:
    box = boxes.open()
    put(box, [parcel(MessageKind.METRICS, number) for number in range(3)])
    box.reserve(1, MIB)
    put(box, [parcel(MessageKind.EVENT, 9)])
    assert drain(box) == [(MessageKind.EVENT, 9), (MessageKind.METRICS, 1), (MessageKind.METRICS, 2)]


def test_no_more_bytes_at_a_time_than_asked_for(boxes: Boxes) -> None:
    box = boxes.open()
    put(box, [parcel(MessageKind.EVENT, number, 1000) for number in range(5)])
    assert len(box.reserve(5, 2500)) == 2
    assert len(box.reserve(5, 10)) == 1, "but one at least"


def test_numbers_are_not_used_again_when_everything_has_gone(boxes: Boxes) -> None:
    box = boxes.open()
    for number in range(3):
        put(box, [parcel(MessageKind.EVENT, number)])
        assert drain(box) == [(MessageKind.EVENT, number)]
        box.remove([Key(MessageKind.EVENT, number + 1)])
    assert box.waiting.pending == 0


# ---- bounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "cap"), [(200, MIB), (5000, MIB), (40_000, MIB), (2000, 3 * MIB)])
def test_the_cap_holds_to_the_byte_and_what_goes_is_counted(boxes: Boxes, size: int, cap: int) -> None:
    box = boxes.open(cap)
    rng = random.Random(size)
    written = dict.fromkeys(MessageKind, 0)
    total = 0
    while total < 2 * cap:
        batch = []
        for _ in range(rng.randrange(1, 3 + 20_000 // size)):
            kind = rng.choice(list(MessageKind))
            batch.append(parcel(kind, written[kind], rng.randrange(size // 2, size + 1)))
            written[kind] += 1
            total += batch[-1].size
        put(box, batch)
        assert boxes.bytes() <= cap
        if rng.random() < 0.1:
            box.remove([key for key, _ in box.reserve(rng.randrange(5), MIB)])
            assert boxes.bytes() <= cap
    assert box.waiting.bytes > cap / 2.5, "and the space is used"
    left = drain(box)
    assert box.waiting.pending == len(left)
    events = [number for kind, number in left if kind is MessageKind.EVENT]
    assert events == list(range(events[0], written[MessageKind.EVENT])), "the oldest went"


def test_the_lowest_priority_goes_first_and_exactly_counted(boxes: Boxes) -> None:
    box = boxes.open()
    put(box, [parcel(MessageKind.METRICS, number, 500) for number in range(400)])
    put(box, [parcel(MessageKind.PREDICTION, number, 500) for number in range(400)])
    put(box, [parcel(MessageKind.EVENT, number, 500) for number in range(1100)])
    left = drain(box)
    assert [number for kind, number in left if kind is MessageKind.EVENT] == list(range(1100))
    assert MessageKind.PREDICTION not in {kind for kind, _ in left}
    metrics = [number for kind, number in left if kind is MessageKind.METRICS]
    assert metrics == list(range(400))[-len(metrics) :]
    assert 0 < len(metrics) < 400
    assert box.waiting.dropped == 1900 - len(left)
    box.close()
    assert boxes.open().waiting == box.waiting, "counts outlive the process"


def test_a_lower_one_never_drives_out_a_higher_one(boxes: Boxes) -> None:
    box = boxes.open()
    put(box, [parcel(MessageKind.EVENT, number, 1000) for number in range(1000)])
    events = box.waiting
    assert events.dropped > 0
    put(box, [parcel(MessageKind.PREDICTION, number, 1000) for number in range(100)])
    assert box.waiting.dropped - events.dropped > 50
    assert [kind for kind, _ in drain(box)].count(MessageKind.EVENT) == events.pending


def test_of_a_weight_update_no_half_is_kept(boxes: Boxes) -> None:
    box = boxes.open()
    put(
        box, [parcel(MessageKind.WEIGHTS, number, 20_000) for number in range(30)]
    )  # three updates of ten parts
    put(box, [parcel(MessageKind.EVENT, number, 20_000) for number in range(8)])
    weights = [number for kind, number in drain(box) if kind is MessageKind.WEIGHTS]
    assert weights
    assert len(weights) % 10 == 0
    assert weights == list(range(30 - len(weights), 30))


def test_what_is_held_does_not_make_room_for_others(boxes: Boxes) -> None:
    box = boxes.open()
    put(box, [parcel(MessageKind.PREDICTION, number, 1000) for number in range(20)])
    taken = [key for key, _ in box.reserve(5, MIB)]
    put(box, [parcel(MessageKind.EVENT, number, 1000) for number in range(1000)])
    pending = box.waiting.pending
    box.remove(taken)
    assert box.waiting.pending == pending - 5
    assert {kind for kind, _ in drain(box)} == {MessageKind.EVENT}


def test_a_message_too_large_for_the_box_is_refused_and_counted(boxes: Boxes) -> None:
    box = boxes.open()
    assert put(box, [parcel(MessageKind.EVENT, 0, 70_000), parcel(MessageKind.EVENT, 1)]) == [
        None,
        Key(MessageKind.EVENT, 1),
    ]
    assert box.waiting.dropped == 1
    assert not box.accepts([parcel(MessageKind.WEIGHTS, 0, 70_000)])
    assert box.accepts([parcel(MessageKind.WEIGHTS, number, 50_000) for number in range(10)])
    assert not box.accepts([parcel(MessageKind.WEIGHTS, number, 50_000) for number in range(11)])


def test_a_lowered_cap_is_reached_and_space_that_is_free_goes_back(boxes: Boxes) -> None:
    box = boxes.open(8 * MIB)
    put(box, [parcel(MessageKind.METRICS, number, 1000) for number in range(5000)])
    box.close()
    box = boxes.open(2 * MIB)
    for _ in range(100):
        box.tidy()
    box.close()
    box = boxes.open(2 * MIB)
    assert boxes.bytes() <= 2 * MIB
    left = drain(box)
    assert left == [(MessageKind.METRICS, number) for number in range(5000 - len(left), 5000)]
    box.remove([Key(MessageKind.METRICS, number + 1) for _, number in left])
    for _ in range(100):
        box.tidy()
    box.close()
    assert boxes.path.stat().st_size < 1.3 * MIB


def test_a_reader_that_hangs_stops_writing_before_the_cap_is_passed(boxes: Boxes) -> None:
    box = boxes.open(2 * MIB)
    reader = connect(boxes.path, readonly=True)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM EVENT").fetchone()
    many = [parcel(MessageKind.EVENT, number, 30_000) for number in range(1000)]
    with pytest.raises(StorageError, match="write-ahead log"):
        put(box, many)
    assert boxes.bytes() <= 2 * MIB
    reader.execute("COMMIT")
    assert put(box, [parcel(MessageKind.EVENT, 0)]) != [None]
    reader.close()


# ---- age -------------------------------------------------------------------------------------------


def test_after_a_week_messages_are_given_up_whether_it_runs_or_not(boxes: Boxes) -> None:
    box = boxes.open()
    put(box, [parcel(MessageKind.EVENT, 0), parcel(MessageKind.METRICS, 0)])
    boxes.clock.advance_to(NOW + 3 * DAY)
    put(box, [parcel(MessageKind.EVENT, 1)])
    box.close()
    boxes.clock.advance_to(NOW + 6.9 * DAY)
    box = boxes.open()
    assert box.tidy() == 0
    boxes.clock.advance_to(NOW + 7.1 * DAY)
    assert box.tidy() == 2
    assert drain(box) == [(MessageKind.EVENT, 1)]
    assert (box.waiting.pending, box.waiting.dropped) == (1, 2)


def test_a_clock_that_is_set_makes_no_message_old(boxes: Boxes) -> None:
    boxes.clock = VirtualClock(100.0)  # a device without a battery for its clock
    box = boxes.open()
    put(box, [parcel(MessageKind.EVENT, 0)])
    boxes.clock._now = NOW  # what setting the time does: monotonic time stays  # noqa: SLF001
    assert box.tidy() == 0
    put(box, [parcel(MessageKind.EVENT, 1)])
    box.close()
    boxes.clock = VirtualClock(NOW - 365 * DAY)  # and back again at the next start
    box = boxes.open()
    boxes.clock.advance_to(NOW - 365 * DAY + 6 * DAY)
    assert box.tidy() == 0
    assert drain(box) == [(MessageKind.EVENT, 0), (MessageKind.EVENT, 1)]


# ---- crashes and full disks ------------------------------------------------------------------------

# Says after each commit how many events and metrics it has put; for each 20 events 20 metrics.
WRITER = """
import resource, signal, sys
from pathlib import Path
from edged.clock import SystemClock
from edged.errors import StorageError
from edged.storage.outbox.queue import Outbox
from tests.storage.outbox.test_queue import MessageKind, parcel

path, cap, limit, count = Path(sys.argv[1]), *map(int, sys.argv[2:])
if limit:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
box = Outbox.open(path, max_bytes=cap, max_age=1e6, clock=SystemClock())
for first in range(0, count, 20):
    kinds = (MessageKind.EVENT, MessageKind.METRICS)
    batch = [(parcel(kind, n, 200), False) for n in range(first, first + 20) for kind in kinds]
    try:
        keys = box.put(batch)
    except StorageError as problem:
        print("failed", problem, flush=True)
        break
    assert len(keys) == len(batch)
    print(first + 20, box.waiting.dropped, flush=True)
"""


def writer(path: Path, cap: int, limit: int = 0, count: int = 10**9) -> subprocess.Popen[str]:
    arguments = map(str, (path, cap, limit, count))
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def test_everything_committed_survives_kill_9(boxes: Boxes) -> None:
    rng = random.Random(1)
    for _ in range(3):
        boxes.path.unlink(missing_ok=True)
        with writer(boxes.path, 64 * MIB) as process:
            assert process.stdout is not None
            for _ in range(rng.randrange(1, 100)):
                line = process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            reported = int([line, *process.stdout.read().splitlines(keepends=True)][-1].split()[0])
        box = boxes.open()
        found = drain(box)
        events = [number for kind, number in found if kind is MessageKind.EVENT]
        assert events == list(range(len(events)))
        assert len(events) >= reported
        assert len(found) == 2 * len(events) == box.waiting.pending
        box.close()
        boxes.path.with_name("outbox.db-wal").unlink(missing_ok=True)
        boxes.path.with_name("outbox.db-shm").unlink(missing_ok=True)


def test_where_files_cannot_grow_events_take_the_place_of_metrics(boxes: Boxes) -> None:
    with writer(boxes.path, 64 * MIB, limit=600_000, count=3000) as process:
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
    assert lines[-1].split()[0] == "3000", lines[-1]
    box = boxes.open(64 * MIB)
    found = drain(box)
    events = [number for kind, number in found if kind is MessageKind.EVENT]
    assert events == list(range(events[0], 3000))
    assert len(events) > 1000
    assert len(found) + box.waiting.dropped == 6000
    assert boxes.path.stat().st_size <= 600_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB; needs root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mounting, check=False, capture_output=True).returncode:
        pytest.skip("mounting needs root; the same is tested with a limit on files")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_on_a_full_disk_the_outbox_gives_up_its_own_messages_first(small_disk: Path) -> None:
    boxes = Boxes(small_disk)
    box = boxes.open(8 * MIB)
    put(box, [parcel(MessageKind.METRICS, number, 1000) for number in range(2000)])
    ballast = small_disk / "others"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, os.statvfs(small_disk).f_bavail * 4096)
    assert os.statvfs(small_disk).f_bavail == 0
    keys = put(box, [parcel(MessageKind.EVENT, number, 1000) for number in range(200)])
    assert None not in keys
    assert box.waiting.dropped > 0
    for _ in range(20):
        box.tidy()
    assert os.statvfs(small_disk).f_bavail > 0, "and others get room"
    assert [number for kind, number in drain(box) if kind is MessageKind.EVENT] == list(range(200))
    box.close()


def test_a_damaged_file_is_put_aside_and_a_new_one_begun(boxes: Boxes) -> None:
    boxes.path.write_bytes(b"this is no database" * 1000)
    box = boxes.open()
    assert put(box, [parcel(MessageKind.EVENT, 0)]) == [Key(MessageKind.EVENT, 1)]
    (aside,) = boxes.path.parent.glob("outbox.db.damaged-*Z")
    assert aside.read_bytes()[:7] == b"this is"


def test_a_power_cut_while_space_is_reserved_costs_no_later_start_its_reserve(boxes: Boxes) -> None:
    box = boxes.open()
    put(box, [parcel(MessageKind.EVENT, 1)])
    box.close()
    with closing(connect(boxes.path)) as db:  # as the first of the two transactions leaves it
        db.execute("CREATE TABLE reserve (content BLOB)")
        db.execute("INSERT INTO reserve VALUES (zeroblob(65536))")
    with capture_logs() as told:
        box = boxes.open()
    assert told == []
    assert drain(box) == [(MessageKind.EVENT, 1)]
    box.close()
    with closing(connect(boxes.path, readonly=True)) as db:
        assert db.execute("SELECT name FROM sqlite_master WHERE name = 'reserve'").fetchall() == []
        assert db.execute("PRAGMA freelist_count").fetchone()[0] * 4096 >= 65536


def test_what_waits_can_be_read_without_opening_it(boxes: Boxes) -> None:
    with pytest.raises(StorageError, match="no such database"):
        waiting(boxes.path)
    box = boxes.open()
    put(box, [parcel(MessageKind.EVENT, 0, 100)])
    box.close()
    assert waiting(boxes.path) == OutboxBacklog(1, 105, 0)
