"""The one exception tree of edged.

Every error says what happened, where, and what to do about it. `str(error)` is the single line a
person reads; the parts stay available as attributes for logs and MQTT answers.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence


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
