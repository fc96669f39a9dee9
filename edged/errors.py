"""The one exception tree of edged, what errors say of unknown names, and packages that may be missing.

Every error says what happened, where, and what to do about it. `str(error)` is the single line a
person reads; the parts stay available as attributes for logs and MQTT answers.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Sequence
from functools import lru_cache
from importlib import import_module
from itertools import islice
from types import ModuleType


class EdgedError(Exception):
    """Base of all errors raised on purpose.

    Parameters
    ----------
    what
        What happened, in one clause.
    where
        File, key, topic, node or step that it concerns.
    remedy
        What the reader can do about it.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        super().__init__(self.line())

    def line(self) -> str:
        """Return the error in one line: where, what, remedy."""
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head} ({self.remedy})" if self.remedy else head

    def lines(self) -> list[str]:
        """Return what a command prints of the error: mostly one line."""
        return [self.line()]


class ConfigError(EdgedError):
    """The configuration or the command line is wrong."""

    exit_code = 2


class ConfigFileError(ConfigError):
    """Mistakes of one file: `problems` are all of them, in its order; the error itself is the first."""

    def __init__(self, problems: Sequence[ConfigError]) -> None:
        first = problems[0]
        self.problems = tuple(problems)
        super().__init__(first.what, where=first.where, remedy=first.remedy)

    def lines(self) -> list[str]:
        """Return all mistakes, each in one line."""
        return [problem.line() for problem in self.problems]


class RefusedError(EdgedError):
    """A gate, a signature or a guard said no."""

    exit_code = 3


class UnavailableError(EdgedError):
    """An engine, an operator or a package is missing on this machine."""

    exit_code = 4


class RejectedSampleError(EdgedError):
    """A message cannot become a Sample. `reason` is a stable word for counters."""

    def __init__(self, reason: str, what: str) -> None:
        self.reason = reason
        super().__init__(what)


class RejectedUpdateError(EdgedError):
    """A message of the fleet, or an update in it, is not taken. `reason` is a stable word for counters."""

    def __init__(self, reason: str, what: str, *, where: str = "") -> None:
        self.reason = reason
        super().__init__(what, where=where)


class StorageError(EdgedError):
    """Something could not be written, read back or verified."""


class FormatError(StorageError):
    """Another edged wrote this, in a format that this one does not read: trying again changes nothing."""

    exit_code = 3


class CorruptError(StorageError):
    """What was read back is not what had been written."""


class BrokerError(EdgedError):
    """The MQTT broker refused us or cannot be reached."""


class BundleError(EdgedError):
    """A bundle is incomplete, damaged, or does not fit the stream."""


class ModelError(EdgedError):
    """A model file cannot be loaded or does not do what it should."""


class TrainingError(EdgedError):
    """A training run cannot begin or go on."""


class NoDataError(TrainingError):
    """There is nothing new to learn from."""


class NonFiniteError(TrainingError):
    """Weights became NaN or infinite; the run goes back to its last checkpoint."""


_OF_PATHS = (
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.EACCES, errno.EPERM,
    errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG,
)  # fmt: skip


def from_system(problem: OSError | ImportError | MemoryError) -> EdgedError:
    """Return what a command says of an error that no function expected: ConfigError for a wrong path.

    >>> from_system(FileNotFoundError(errno.ENOENT, "No such file or directory", "a.npz")).line()
    'a.npz: no such file or directory (correct the path or its permissions)'
    """
    if isinstance(problem, MemoryError):
        return EdgedError("there is not enough memory", remedy="free some, or give less data")
    if isinstance(problem, ImportError):
        return UnavailableError(
            f"a package is missing: {problem}", remedy="install it: `edged doctor` says how"
        )
    reason = problem.strerror or str(problem) or type(problem).__name__
    what, where = reason[:1].lower() + reason[1:], str(problem.filename or "")
    if problem.errno in _OF_PATHS:
        return ConfigError(what, where=where, remedy="correct the path or its permissions")
    return EdgedError(what, where=where)


# ---- what an error says of a name that is not known: the names that are, and the nearest -----------

SHOWN_NAMES = 12
COMPARED = 50


def one_of(names: Collection[str]) -> str:
    """The first names, and how many more there are.

    >>> one_of(["ok", "worn"])
    'ok, worn'
    """
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return ", ".join(name[:40] for name in islice(names, SHOWN_NAMES)) + more


def did_you_mean(name: str, known: Collection[str]) -> str | None:
    """A question after the name nearest to `name`; None when none is near.

    >>> did_you_mean("Temp", ["vib", "temp"])
    'did you mean temp?'
    """
    some = list(islice(known, COMPARED))
    at = _nearest(name[:40].casefold(), tuple(other[:40].casefold() for other in some))
    return None if at is None else f"did you mean {some[at]}?"


@lru_cache(maxsize=64)  # a sensor that is refused sends the same names again and again
def _nearest(name: str, known: tuple[str, ...]) -> int | None:
    """The position of the name that is most like `name`; None where none is like it."""
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    return known.index(near[0]) if near else None


def required(package: str, extra: str, where: str) -> ModuleType:
    """Import a package that an extra installs.

    Raises UnavailableError when it is not installed; the error names the extra that brings it.
    """
    try:
        return import_module(package)
    except ImportError as problem:
        raise UnavailableError(
            f"the package {package.partition('.')[0]} is missing: {problem}",
            where=where,
            remedy=f'pip install "edged[{extra}]"',
        ) from problem
