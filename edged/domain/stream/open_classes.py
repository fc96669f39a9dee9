"""Classes that come, go and become one while a device runs."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from edged.domain.arrays import Floats
from edged.errors import RefusedError, RejectedSampleError

REMOVED = -1
LONGEST = 100  # letters of a name
_NEVER = np.float32(-1e9)  # a logit whose probability is 0


@dataclass(frozen=True)
class OpenClass:
    """A class on an output of the network.

    `becomes` is the output that counts in its place: its own, that of the class that it was merged into, or
    `REMOVED`. `command` is the last command that changed it.
    """

    name: str
    becomes: int
    command: str | None = None


class OpenClasses(Sequence[str]):
    """The names of a network's `outputs`, in their order; "" for one that no class has yet.

    A class never changes its output, and an output that had one never gets another: so labels that are stored
    as numbers keep their meaning, and earlier models stay usable. `names` are those of the configuration.
    All methods may be called from any thread.
    """

    def __init__(self, names: Sequence[str], outputs: int) -> None:
        self._outputs, self._first = outputs, len(names)
        self._classes = [OpenClass(name, place) for place, name in enumerate(names)]
        self._lock = threading.RLock()
        self.revision = 0

    # ---- names -----------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._outputs

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[str, ...]: ...

    def __getitem__(self, place: int | slice) -> str | tuple[str, ...]:
        return self._names()[place]

    def _names(self) -> tuple[str, ...]:
        known = [one.name for one in self._classes]
        return (*known, *[""] * (self._outputs - len(known)))

    @property
    def known(self) -> tuple[str, ...]:
        """The names of the classes of now."""
        return tuple(one.name for place, one in enumerate(self._classes) if one.becomes == place)

    @property
    def places(self) -> list[int]:
        """Positions of the classes among the model's outputs."""
        return [place for place, one in enumerate(self._classes) if one.becomes == place]

    @property
    def free(self) -> int:
        """How many classes can still come."""
        return self._outputs - len(self._classes)

    def place(self, name: str) -> int:
        """The output of a class; a name that is new gets one.

        Raises RejectedSampleError when the class was removed, or no output is free.
        """
        with self._lock:
            place = self._place(name)
            if place is not None and self._classes[place].becomes == REMOVED:
                raise RejectedSampleError("label", f"the class {name!r} was removed")
            if place is None:
                try:
                    place = self.add(name)
                except RefusedError as problem:
                    raise RejectedSampleError("label", f"label {name[:40]!r}: {problem.what}") from problem
            return self._classes[place].becomes

    def _place(self, name: str) -> int | None:
        """The newest output of this name."""
        return next((p for p, one in reversed(list(enumerate(self._classes))) if one.name == name), None)

    # ---- changes ---------------------------------------------------------------------------

    def add(self, name: str, command: str | None = None) -> int:
        """Give a class an output, another one where a class of this name was removed or merged.

        Raises RefusedError when it is here, its name is none, or no output is free.
        """
        if not 0 < len(name.strip()) <= LONGEST or not name.isprintable():
            raise RefusedError(f"no name of a class: 1 to {LONGEST} printable letters", where="class")
        with self._lock:
            if name in self.known:
                raise RefusedError(f"{name!r} is a class already", where="class")
            if not self.free:
                raise RefusedError(
                    f"all {self._outputs} outputs of the network have had a class",
                    where="stream.max_classes",
                    remedy="raise it and restart",
                )
            self._classes.append(OpenClass(name, len(self._classes), command))
            self.revision += 1
            return len(self._classes) - 1

    def retire(self, name: str, into: str | None, command: str | None = None) -> int:
        """Remove a class, or let it count as the class `into`; its output.

        Raises RefusedError when one of them is no class of now, or both are the same.
        """
        with self._lock:
            place, other = self._known(name, "class"), REMOVED if into is None else self._known(into, "to")
            if place == other:
                raise RefusedError("both are the same class", where="to")
            for at, one in enumerate(self._classes):
                if one.becomes == place:
                    retired_by = command if at == place else one.command
                    self._classes[at] = replace(one, becomes=other, command=retired_by)
            self.revision += 1
            return place

    def _known(self, name: str, where: str) -> int:
        place = self._place(name)
        if place is None or self._classes[place].becomes != place:
            raise RefusedError(f"{name[:40]!r} is no class: {', '.join(self.known)}", where=where)
        return place

    def changed_by(self, command: str) -> bool:
        """Whether a command was the last to change a class."""
        return any(one.command == command for one in self._classes)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Make changes of which nothing is left after an exception."""
        with self._lock:
            before = list(self._classes)
            try:
                yield
            except BaseException:
                self._classes = before
                raise

    def rows(self) -> list[OpenClass]:
        """All classes there ever were, in the order of their outputs."""
        return list(self._classes)

    def load(self, rows: Iterable[OpenClass]) -> None:
        """Go on from stored classes; those of the configuration that are new come behind them.

        Later calls change nothing. Raises RefusedError when they do not fit the outputs.
        """
        with self._lock:
            if self.revision:
                return
            self.revision += 1
            ours, self._classes = self._classes, list(rows)
            if len(self._classes) > self._outputs:
                raise RefusedError(
                    f"{len(self._classes)} classes are stored, the network has {self._outputs} outputs",
                    where="stream.max_classes",
                )
            for one in ours:
                if self._place(one.name) is None:
                    self.add(one.name)

    # ---- labels and outputs ----------------------------------------------------------------

    def mapped(self, y: Floats) -> Floats:
        """Class indices `(n, 1)` as they count now: −1 for those of removed classes."""
        return counted([one.becomes for one in self._classes], y)

    def fold(self, raw: Floats) -> Floats:
        """Logits `(n, c)` in which merged classes count for others, and those that are none for nothing.

        Those of an earlier network may be fewer: classes that it never had count for nothing, too.
        """
        if raw.shape[1] < self._outputs:
            more = np.full((len(raw), self._outputs - raw.shape[1]), _NEVER)
            raw = np.concatenate([raw, more], axis=1)
        becomes = [one.becomes for one in self._classes]
        if becomes == list(range(raw.shape[1])):
            return raw
        folded = raw.copy()
        for place, other in enumerate(becomes):
            if other not in (place, REMOVED):
                folded[:, other] = np.logaddexp(folded[:, other], folded[:, place])
        gone = np.ones(raw.shape[1], bool)
        gone[[place for place, other in enumerate(becomes) if other == place]] = False
        folded[:, gone] = _NEVER
        return np.asarray(folded)


def counted(becomes: Sequence[int], y: Floats) -> Floats:
    """Class indices `(n, 1)` as they count now, by what each class has become."""
    table = np.array([*becomes, REMOVED], np.float32)
    place = np.where((y >= 0) & (y < len(becomes)), y, len(becomes)).astype(np.int64)
    return np.asarray(table[place], np.float32)
