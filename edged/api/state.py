"""A state directory, read and never changed, also while its daemon runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

    from edged.api.inputs import PathOrText
    from edged.storage.journal.journal import RunRecord
    from edged.storage.models.records import ModelRecord
    from edged.storage.models.registry import Registry
    from edged.storage.samples.sample_table import SampleTable, SampleTableReader

SAMPLES, REGISTRY = "samples.db", "state.db"


@dataclass(frozen=True)
class Figures:
    """The contents of a state directory, and the last report of its daemon.

    Attributes
    ----------
    pid
        Process of the daemon that uses it; None when none does.
    samples, labels, quarantined, evicted
        Counts since the beginning; `stored` is how many samples are there now.
    champion, since
        Version of the model that serves, and from when on (Unix seconds); None without one.
    runs
        Number of training runs since the beginning.
    quality
        Live quality of the champion, as in the status message; None before the first report.
    reported
        Time of that report, Unix seconds.
    """

    pid: int | None
    samples: int
    labels: int
    quarantined: int
    evicted: int
    stored: int
    champion: int | None
    since: float | None
    runs: int
    quality: Mapping[str, Any] | None
    reported: float | None


class State:
    """A state directory; a context manager. Made by `open_state`.

    Each call reads one consistent moment; the next one may see what the daemon has written since. A database
    that is not there yet raises StorageError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the databases. Safe to call twice."""
        self._stack.close()

    def samples(
        self, *, limit: int | None = None, after: int = 0, key: str | None = None, labelled: bool = False
    ) -> SampleTable:
        """Read the newest `limit` samples with their labels, oldest first; None: all of them.

        `after`: only samples with larger offsets, such as the last one of the call before. `key`: only
        samples of this key. `labelled`: only samples with a label.
        """
        return self._samples.read(limit=limit, after=after, key=key, labelled=labelled)

    def models(self) -> tuple[ModelRecord, ...]:
        """Read the record of each model, oldest first: version, parent, status, verdict, metrics."""
        return tuple(self._registry.records())

    def champion(self) -> ModelRecord | None:
        """Read the record of the model that serves; None without one."""
        version = self._registry.champion()
        return None if version is None else self._registry.get(version)

    def model_file(self, version: int) -> Path:
        """Return the path of a model's file, all its files compared with their checksums.

        Raises StorageError for an unknown version; CorruptError when a file is damaged.
        """
        return self._registry.verify(self._registry.get(version).version)

    def runs(self, limit: int = 100) -> tuple[RunRecord, ...]:
        """Read the newest training runs, newest first; `outcome` is None for one in progress."""
        return tuple(self._registry.runs(limit))

    def figures(self) -> Figures:
        """Read counts, champion and live quality."""
        from edged.device.reports import LocalStatus
        from edged.storage.files.atomic import DirectoryLock

        counts, registry, status = self._samples.counts(), self._registry, LocalStatus.of(self.path)
        reign = registry.reign()
        return Figures(
            DirectoryLock.holder(self.path),
            counts.samples,
            counts.labels,
            counts.quarantined,
            counts.evicted,
            counts.rows,
            None if reign is None else reign.version,
            None if reign is None else reign.ts,
            registry.run_count(),
            None if status.model.quality is None else status.model.quality.to_json(),
            status.ts,
        )

    @cached_property
    def _samples(self) -> SampleTableReader:
        from edged.storage.samples.sample_table import SampleTableReader

        reader = SampleTableReader.open(self.path / SAMPLES)
        self._stack.callback(reader.close)
        return reader

    @cached_property
    def _registry(self) -> Registry:
        from edged.storage.models.registry import Registry

        registry = Registry.open(self.path, readonly=True)
        self._stack.callback(registry.close)
        return registry


def open_state(path: PathOrText, *, stream: str | None = None) -> State:
    """Open a state directory for reading: of a stopped device, a running one, or the `out` of a replay.

    Parameters
    ----------
    path
        The state directory, or the configuration file that names it.
    stream
        Name of the stream, where the device has several.

    Raises
    ------
    EdgedError
        ConfigError when there is no state directory, or several streams and none is named.
    """
    from edged.config.streams import FOLDER, chosen

    given = Path(path)
    if given.is_file():
        from edged.api.inputs import config_of

        given, stream = config_of(given, stream).storage.dir, None
    elif (given / FOLDER).is_dir():
        names = sorted(folder.name for folder in (given / FOLDER).iterdir())
        given = given / FOLDER / names[chosen(names, stream, given)]
    if not any((given / name).exists() for name in (SAMPLES, REGISTRY)):
        raise ConfigError(
            "this is no state directory", where=str(given), remedy="name storage.dir of a device"
        )
    return State(given)
