"""Samples on their way from `edged import` to a running daemon: files in `imports/<SHA-256 of the source>/`.

Each file is named after the number of its first sample within the import. The command writes them, the daemon
stores their samples and removes them. `end.json` says how many samples the import has.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edged.domain.audit_chain import AuditEntry
from edged.domain.commits.imported import ImportProgress
from edged.domain.stream.sample import Batch
from edged.errors import CorruptError
from edged.storage.files import atomic
from edged.storage.files.checksummed_json import read_sealed, seal

FOLDER = "imports"
END = "end.json"
BEGIN = "begin.json"


@dataclass(frozen=True)
class ImportChunks:
    """The chunks of one import in its folder."""

    folder: Path

    @classmethod
    def of(cls, state: Path, file: str) -> ImportChunks:
        """The chunks of the file with this SHA-256."""
        return cls(state / FOLDER / file)

    @classmethod
    def waiting(cls, state: Path) -> Iterator[ImportChunks]:
        """Those that have chunks or an end, in the order of their names."""
        folder = state / FOLDER
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            found = cls(path)
            begun = not path.name.startswith(atomic.STAGING) and (path / BEGIN).exists()
            if begun and ((path / END).exists() or found.count()):
                yield found

    # ---- the command's side ----------------------------------------------------------------

    def begin(self, progress: ImportProgress) -> None:
        """Say which file it is; what an earlier attempt left stays."""
        atomic.make_directory(self.folder)
        about = {"options": progress.options, "name": progress.name}
        atomic.publish_file(self.folder / BEGIN, seal(about))

    def write(self, batch: Batch) -> None:
        """Write samples, whole or not at all; their offsets are their numbers within the import."""
        targets = max((np.size(label) for label in batch.labels if label is not None), default=1)
        nothing = [np.nan] * targets
        labels = [nothing if label is None else np.reshape(label, -1) for label in batch.labels]
        content = io.BytesIO()
        np.savez(
            content,
            x=batch.x,
            ts=batch.ts,
            labels=np.array(labels, np.float64),
            texts=np.frombuffer(json.dumps([batch.keys, batch.ids]).encode(), np.uint8),
        )
        atomic.publish_file(self.folder / f"{batch.offsets[0]:012d}.npz", content.getvalue())

    def write_end(self, samples: int, entry: AuditEntry) -> None:
        """Write how many samples there are in all; `entry` goes to the audit log once they are stored."""
        atomic.publish_file(self.folder / END, seal({"samples": samples, "entry": entry.to_json()}))

    def count(self) -> int:
        """Return how many chunks wait."""
        return len(list(self.folder.glob("*.npz")))

    # ---- the daemon's side -----------------------------------------------------------------

    def progress(self) -> ImportProgress:
        """Read what `begin` wrote about the file."""
        about = read_sealed(self.folder / BEGIN)
        return ImportProgress(self.folder.name, str(about["options"]), str(about["name"]))

    def read_end(self) -> tuple[int, AuditEntry] | None:
        """Read what `write_end` wrote; None while more chunks are to come."""
        if not (self.folder / END).exists():
            return None
        values = read_sealed(self.folder / END)
        return int(values["samples"]), AuditEntry.from_json(values["entry"])

    def at(self, sample: int) -> Batch | None:
        """The samples from this one on that are in one chunk; earlier chunks are removed.

        None where they have not been written yet. Raises CorruptError for a damaged chunk, which is removed.
        """
        for path in sorted(self.folder.glob("*.npz")):
            first = int(path.stem)
            if first > sample:
                return None
            try:
                batch = _read(path)
            except (OSError, ValueError, KeyError) as problem:
                atomic.DISK.remove(path)
                raise CorruptError(f"a chunk is damaged: {problem}", where=str(path)) from problem
            if sample < first + len(batch):
                return batch.part(sample - first, len(batch))
            atomic.DISK.remove(path)
        return None

    def remove(self) -> None:
        """Remove everything, if there is anything."""
        if self.folder.exists():
            atomic.remove(self.folder)


def _read(path: Path) -> Batch:
    with np.load(path, allow_pickle=False) as arrays:
        x, ts, labels = arrays["x"], arrays["ts"], arrays["labels"]
        keys, ids = json.loads(arrays["texts"].tobytes())
    values = labels[:, 0].tolist() if labels.shape[1] == 1 else list(map(tuple, labels.tolist()))
    known = np.isfinite(labels).all(axis=1).tolist()
    return Batch(
        np.arange(int(path.stem), int(path.stem) + len(x)),
        keys,
        ts,
        np.zeros(len(x)),
        x,
        [value if there else None for value, there in zip(values, known, strict=True)],
        ids,
    )
