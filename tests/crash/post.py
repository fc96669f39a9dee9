"""An outbox and what is known of it: every message that was put, and what may have become of it."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from edged.clock import VirtualClock
from edged.domain.commands.delivery_policy import MessageKind, OutboxMessage
from edged.storage.files.database import connect
from edged.storage.outbox.queue import DATABASE, Outbox
from edged.storage.outbox.tables import OutboxBacklog, parcels

if TYPE_CHECKING:
    from edged.storage.outbox.tables import Key

CAP = 1024**2
DAY = 86_400.0
MAX_AGE = 3.5 * DAY  # ages are whole days here: none is near it
UPDATE = 4  # messages of one weight update


@dataclass(frozen=True)
class Letter:
    """One message; `number` is its place among all that were ever put."""

    kind: MessageKind
    number: int
    size: int
    day: int

    @property
    def parcel(self) -> OutboxMessage:
        """What is put; its content says which it is."""
        topic = (
            f"w/{self.number // UPDATE}/{self.number % UPDATE}" if self.kind is MessageKind.WEIGHTS else "t"
        )
        return OutboxMessage(self.kind, topic, (b'{"n":%d}' % self.number).ljust(self.size))


@dataclass(frozen=True)
class Sent:
    """How many are handed over, the share of those in hand that arrives, and of the rest that comes back."""

    count: int
    arrived: float
    back: float
    seed: int


def number_of(parcel: OutboxMessage) -> int:
    """Which letter it is."""
    return int(parcel.payload[5 : parcel.payload.index(b"}")])


@dataclass
class Post:
    """The outbox of one device over all its lives, on a clock of its own.

    `waiting` are the letters that must be there, by kind and in order; `held` those that the present
    process has taken; `gone` those that the broker has and that were removed: never to be sent again.
    """

    clock: VirtualClock = field(default_factory=lambda: VirtualClock(1_770_000_000.0))
    waiting: dict[MessageKind, list[Letter]] = field(
        default_factory=lambda: {kind: [] for kind in MessageKind}
    )
    held: dict[int, Key] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    dropped: int = 0
    day: int = 0
    count: int = 0

    def open(self, directory: Path) -> None:
        """As a daemon that starts: nothing is held any more."""
        self.path = directory / DATABASE
        self.held.clear()
        self.box = Outbox.open(self.path, max_bytes=CAP, max_age=MAX_AGE, clock=self.clock)

    def letters(self, kind: MessageKind, n: int, size: int) -> list[Letter]:
        """The next to be put."""
        first = self.count
        self.count += n
        return [Letter(kind, number, size, self.day) for number in range(first, first + n)]

    # ---- what is done to it ----------------------------------------------------------------

    def put(self, letters: list[Letter]) -> None:
        """All of them, in as many transactions as it takes; each is kept or counted as given up."""
        rest = list(letters)
        while rest:
            keys = self.box.put([(letter.parcel, False) for letter in rest])
            taken, rest = rest[: len(keys)], rest[len(keys) :]
            self.settle(taken, keys)

    def settle(self, new: list[Letter], keys: list[Key | None]) -> None:
        """Only the oldest of the lowest priority may have gone, and only for one that is no lower."""
        kind, kept = new[0].kind, [letter for letter, key in zip(new, keys, strict=True) if key is not None]
        there = self._there()
        before, self.dropped = self.dropped, self.box.waiting.dropped
        lost = len(new) - len(kept)
        assert kept == new[lost:], "a newer one went before an older one of its kind"
        for other in MessageKind:
            had = self.waiting[other] + (kept if other is kind else [])
            has = [letter for letter in had if letter.number in there]
            given_up = [letter for letter in had if letter.number not in there]
            free = [letter for letter in had if letter.number not in self.held]
            assert given_up == free[: len(given_up)], f"of {other.name} others than the oldest were given up"
            if given_up:
                assert other >= kind, f"{other.name} was given up for {kind.name}"
                for lower in MessageKind:
                    assert lower <= other or self._free(lower, there) == [], (
                        f"{lower.name} should have gone first"
                    )
            lost += len(given_up)
            self.waiting[other] = has
        assert self.dropped - before == lost, "what was given up is not what was counted"

    def _free(self, kind: MessageKind, there: set[int]) -> list[Letter]:
        return [x for x in self.waiting[kind] if x.number in there and x.number not in self.held]

    def send(self, sent: Sent) -> None:
        """Hand over, acknowledge, give back; what came back is the first to be handed over again."""
        rng = random.Random(sent.seed)
        self.take(sent.count)
        self.acknowledge(sent.arrived, rng)
        self.give_back(sent.back, rng)
        self.take(sent.count // 4)

    def take(self, count: int) -> None:
        """Hand some over, as to a connection: highest kind first, within it in order."""
        due = [
            letter for kind in MessageKind for letter in self.waiting[kind] if letter.number not in self.held
        ]
        taken = self.box.reserve(count, CAP)
        numbers = [number_of(parcel) for _, parcel in taken]
        assert numbers == [letter.number for letter in due[:count]], "not those whose turn it is"
        assert not self.gone.intersection(numbers), "sent again although the broker had it"
        self.held |= {number: key for number, (key, _) in zip(numbers, taken, strict=True)}

    def acknowledge(self, share: float, rng: random.Random) -> None:
        """The broker has some of those that were handed over: they leave the disk."""
        chosen = [number for number in self.held if rng.random() < share]
        self.box.remove([self.held.pop(number) for number in chosen])
        self.gone.update(chosen)
        self.forget(set(chosen))

    def give_back(self, share: float, rng: random.Random) -> None:
        """The connection does not take them after all."""
        for number in [number for number in self.held if rng.random() < share]:
            self.box.release(self.held.pop(number))

    def pass_days(self, days: int) -> None:
        """Time passes; what is too old is given up, but for what is in somebody's hands."""
        self.day += days
        self.clock.advance_to(self.clock.now() + days * DAY)
        old = {
            letter.number
            for letters in self.waiting.values()
            for letter in letters
            if (self.day - letter.day) * DAY > MAX_AGE and letter.number not in self.held
        }
        assert self.box.tidy() == len(old)
        self.dropped += len(old)
        self.forget(old)

    def forget(self, numbers: set[int]) -> None:
        """They need not be there any more."""
        for kind, letters in self.waiting.items():
            self.waiting[kind] = [letter for letter in letters if letter.number not in numbers]

    def lose_all(self) -> None:
        """The file was damaged: its messages are lost, and not counted."""
        self.waiting, self.dropped = {kind: [] for kind in MessageKind}, 0

    # ---- what must hold --------------------------------------------------------------------

    def _there(self) -> set[int]:
        """Numbers of the letters on the disk, as another process sees them."""
        found: set[int] = set()
        with closing(connect(self.path, readonly=True)) as db:
            for kind in MessageKind:
                with closing(parcels(db, kind, 0)) as rows:
                    found.update(number_of(parcel) for _, parcel in rows)
        return found

    def check(self) -> None:
        """What waits is what must, bytes and counts agree, and the files keep to their cap."""
        letters = [letter for letters in self.waiting.values() for letter in letters]
        size = sum(letter.parcel.size for letter in letters)
        assert self.box.waiting == OutboxBacklog(len(letters), size, self.dropped)
        assert self._there() == {letter.number for letter in letters}
        assert self.box.takeable == len(letters) - len(self.held)
        assert (
            sum(f.stat().st_size for f in self.path.parent.glob(f"{DATABASE}*") if "damaged" not in f.name)
            <= CAP
        )

    def after_cut(self, letters: list[Letter]) -> None:
        """A power cut in mid-put: all of the commit is there, or nothing of it happened."""
        there = self._there()
        came = [letter for letter in letters if letter.number in there]
        assert came in ([], letters), "half of a commit"
        if came:
            self.waiting[letters[0].kind] += letters
