"""What messages say, samples and labels, one by one and as batches of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

LabelValue = float | tuple[float, ...]


@dataclass(slots=True)
class Reading:
    """One decoded message, before it has a place in the sample log.

    Not frozen, for speed: one is made of each message, to which the decoder adds its `source`.
    `values` are `d` numbers in model input order, not yet checked for being finite;
    `ts` is Unix time in seconds, None when the message carries none.
    """

    key: str
    values: list[float] | NDArray[np.float32]
    ts: float | None = None
    label: LabelValue | None = None
    id: str | None = None
    refused_label: str | None = None  # why the label of the message was not taken
    source: str = field(default="", repr=False)  # where the label came from


Decoded = Reading | list[Reading]
"""What one message holds: mostly one reading, or several, oldest first, or none."""


@dataclass(frozen=True, slots=True)
class LabelReading:
    """A label that came by itself from a `source`: joined by sample `id`, or by `key` and `ts`."""

    label: LabelValue
    id: str | None = None
    key: str | None = None
    ts: float | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """Values of some features of a key.

    `values` are pairs of a position among the features that messages bring and a number, NaN for one that the
    sensor says is missing; `ts` is Unix time in seconds, None when the message carries none.
    """

    key: str
    values: list[tuple[int, float]]
    ts: float | None = None
    label: LabelValue | None = None
    id: str | None = None
    refused_label: str | None = None  # why the label of the message was not taken


@dataclass(frozen=True, slots=True)
class HeldLabel:
    """A label, and since when it holds (Unix seconds)."""

    label: LabelValue
    since: float


@dataclass(frozen=True, slots=True)
class HeldChange:
    """Change by a command of the label that holds for a key.

    `before` and `after` it, at `ts` (Unix seconds); None for no label. `undoes` is the number of the change
    that it takes back.
    """

    command: str
    key: str
    ts: float
    before: HeldLabel | None
    after: HeldLabel | None
    undoes: int | None = None


@dataclass(frozen=True, slots=True)
class HoldReading:
    """A label that holds for all samples of a key from `ts` on, until the next; None ends it.

    `command` says so, where that can be undone; `undoing` is a change that a command takes back instead.
    """

    key: str
    label: LabelValue | None
    ts: float | None = None
    command: str | None = None
    undoing: HeldChange | None = None


Seen = Reading | Observation | LabelReading | HoldReading
"""What a message says."""


@dataclass(frozen=True)
class Batch:
    """Samples in arrival order, as columns of equal length `n`.

    `offsets` `(n,)` int64; `x` `(n, d)` float32; `ts` and `ingested` `(n,)` float64 Unix seconds;
    `labels[i]` is None where no label has come; `ids[i]` is the sender's id or None;
    `packets[i]` is `(packet id, checksum)` of the MQTT delivery, or None for other sources. `sources[i]`
    is where the label came from; of the offsets `aside` nothing is learned, and nothing judged.
    """

    offsets: NDArray[np.int64]
    keys: list[str]
    ts: NDArray[np.float64]
    ingested: NDArray[np.float64]
    x: NDArray[np.float32]
    labels: list[LabelValue | None]
    ids: list[str | None] = field(default_factory=list)
    packets: list[tuple[int, int] | None] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    aside: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def of(
        cls,
        readings: list[Reading],
        packets: list[tuple[int, int] | None],
        *,
        first: int,
        now: float,
        ts: NDArray[np.float64],
    ) -> Batch:
        """A batch of decoded messages that came at `now`; offsets rise from `first`, event times are `ts`."""
        count = len(readings)
        return cls(
            np.arange(first, first + count, dtype=np.int64),
            [r.key for r in readings],
            ts,
            np.full(count, now, np.float64),
            np.array([r.values for r in readings], np.float32),
            [r.label for r in readings],
            [r.id for r in readings],
            packets,
            ["" if r.label is None else r.source or "samples" for r in readings],
        )

    @classmethod
    def joined(cls, batches: Sequence[Batch]) -> Batch:
        """Several, one after the other, as one."""
        return cls(
            np.concatenate([batch.offsets for batch in batches]),
            [key for batch in batches for key in batch.keys],
            np.concatenate([batch.ts for batch in batches]),
            np.concatenate([batch.ingested for batch in batches]),
            np.concatenate([batch.x for batch in batches]),
            [label for batch in batches for label in batch.labels],
            [name for batch in batches for name in batch.ids],
            [packet for batch in batches for packet in batch.packets],
            [source for batch in batches for source in batch.sources],
            frozenset().union(*(batch.aside for batch in batches)),
        )

    def part(self, start: int, stop: int) -> Batch:
        """The samples from position `start` to before `stop`."""
        columns = {column.name: getattr(self, column.name) for column in fields(self)}
        aside = columns.pop("aside")
        return Batch(**{name: column[start:stop] for name, column in columns.items()}, aside=aside)

    def is_aside(self) -> NDArray[np.bool_]:
        """Which samples are excluded from learning, `(n,)` bool."""
        if not self.aside:
            return np.zeros(len(self), bool)
        return np.isin(self.offsets, list(self.aside))


@dataclass(frozen=True)
class LabelUpdate:
    """A label from a `source` that has found its sample; of the command `label` there is no source."""

    offset: int
    label: LabelValue
    ts: float
    source: str = ""


@dataclass(frozen=True)
class Window:
    """Labelled samples read for training or judging, oldest first.

    `offsets` `(n,)` int64, `x` `(n, d)` float32 contiguous, `y` `(n, targets)` float32 contiguous
    (class indices for classification), `seq` `(n,)` int64 the position in label order.
    """

    offsets: NDArray[np.int64]
    seq: NDArray[np.int64]
    x: NDArray[np.float32]
    y: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.offsets)

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> Window:
        """The chosen rows as a new window."""
        return Window(self.offsets[index], self.seq[index], self.x[index], self.y[index])

    def followed_by(self, other: Window) -> Window:
        """The rows of both as a new window."""
        return Window(*(np.concatenate(pair) for pair in zip(self._arrays(), other._arrays(), strict=True)))

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        return self.offsets, self.seq, self.x, self.y


@dataclass(frozen=True, slots=True)
class StoredSample:
    """One stored sample: `x` `(d,)` inputs with their context, `label` the class that counts now, or None."""

    offset: int
    key: str
    ts: float
    x: NDArray[np.float32]
    label: int | None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A message that could not become a sample, for the quarantine.

    `ts` Unix seconds of its arrival; `reason` a stable word for counters, `detail` one line for
    people; `packet` as in `Batch.packets`. Of the payload the first 4 KiB are kept.
    """

    ts: float
    topic: str
    reason: str
    payload: bytes
    detail: str
    packet: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        # JSON can hold half of a surrogate pair, which can be neither stored nor sent as UTF-8.
        if not self.detail.isascii():
            object.__setattr__(self, "detail", self.detail.encode(errors="replace").decode())
