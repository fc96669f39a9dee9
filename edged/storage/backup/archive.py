"""A backup as one file: an archive with a manifest.

First the manifest with size and SHA-256 of each file that follows, then, where it was signed, the signature
of that manifest, then the files by name. `unzip -l` lists it. Nothing else is taken: no paths that lead
elsewhere, and what `ArchiveReader` does not take.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from typing_extensions import Self

from edged.domain.bundle_contents import FileEntry
from edged.domain.training.message import Message
from edged.errors import CorruptError, RefusedError, TrainingError
from edged.storage.files.archive import ArchiveReader, ArchiveWriter, blocks_of
from edged.storage.files.checksummed_json import seal, unseal

MANIFEST, SIGNATURE = "backup.json", "backup.sig"
MOST_FILES, LONGEST_MANIFEST = 20_000, 8 << 20
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_DEPTH = 4


@dataclass(frozen=True)
class BackupManifest(Message):
    """What the manifest of a backup says beside its files.

    `edged` is the version that made it, `device` the id of the device, `created` in Unix seconds. `champion`
    is the version of the model that served, None where none did, and `samples` the number of samples.
    """

    edged: str
    device: str
    created: float
    format: int
    champion: int | None
    samples: int


def write(
    target: BinaryIO,
    about: BackupManifest,
    files: Mapping[str, Path],
    sign: Callable[[bytes], bytes] | None,
) -> None:
    """Write a backup of these files, by their names in it; `sign` makes the signature of the manifest.

    Raises CorruptError when a file changes meanwhile.
    """
    listed = {name: vars(FileEntry.of(files[name])) for name in sorted(files)}
    manifest = seal({**about.to_json(), "files": listed})
    with ArchiveWriter(target) as archive:
        archive.add(MANIFEST, len(manifest), [manifest])
        if sign is not None:
            signature = sign(manifest)
            archive.add(SIGNATURE, len(signature), [signature])
        for name, entry in listed.items():
            archive.add(name, entry["bytes"], blocks_of(files[name]))


class BackupReader:
    """Reads a backup once, from its beginning to its end; use it as a context manager.

    `manifest` and `signature` are as they were written, the signature empty where there is none: check it
    before reading on. `format` is what the manifest says of the form it has, `names` are those of the files.

    Raises CorruptError when it is no such archive or its beginning is damaged; RefusedError when it names
    files as no backup does.
    """

    def __init__(self, source: BinaryIO, where: str) -> None:
        self._where = where
        kind = f"backup of edged in {where}"
        self._archive = ArchiveReader(source, kind, "use another one", is_plain, MOST_FILES + 2)
        with ExitStack() as unless_read:
            unless_read.push(self._archive)
            members = self._archive.members
            if not members or members[0].filename != MANIFEST or members[0].file_size > LONGEST_MANIFEST:
                raise self._archive.damaged("its beginning is damaged")
            self.manifest = b"".join(self._archive.blocks(members[0]))
            self._values = unseal(self.manifest, where)
            self.format = self._values.get("format")
            signed = len(members) > 1 and (members[1].filename, members[1].file_size) == (SIGNATURE, 64)
            self.signature = b"".join(self._archive.blocks(members[1])) if signed else b""
            self._members = members[2 if signed else 1 :]
            self.names = [member.filename for member in self._members]
            taken = set(self.names)
            for name in self.names:  # a file cannot be where another one's directory is
                if any(str(parent) in taken for parent in PurePosixPath(name).parents):
                    raise RefusedError("this file lies within a file", where=repr(name[:120]))
            unless_read.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._archive.__exit__(*error)

    def about(self) -> BackupManifest:
        """Read the manifest; raises CorruptError when it is not whole."""
        try:
            return BackupManifest.from_json(self._values)
        except TrainingError as problem:
            raise CorruptError(f"the manifest is not whole: {problem.line()}", where=self._where) from problem

    def extract(self, folder: Path) -> None:
        """Write the files into `folder`; CorruptError when one of them is not as it was written."""
        listed: Any = self._values.get("files")
        if not isinstance(listed, dict) or list(listed) != self.names:
            raise self._archive.damaged("it does not hold the files that its manifest names")
        for member in self._members:
            path, digest = folder / member.filename, hashlib.sha256()
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as target:
                for block in self._archive.blocks(member):
                    digest.update(block)
                    target.write(block)
            if listed[member.filename] != vars(FileEntry(member.file_size, digest.hexdigest())):
                raise self._archive.damaged("not what the manifest says", member.filename)


def is_plain(name: str) -> bool:
    """Tell whether a file in a backup may have this name."""
    parts = name.split("/")
    return len(parts) <= _DEPTH and all(_PART.fullmatch(part) for part in parts) and name.isascii()
