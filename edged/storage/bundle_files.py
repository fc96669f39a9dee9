"""A bundle as one file, `.edged`: a zip archive with the bundle's files, not compressed.

It may come from anywhere: names, number, sizes and kinds of its members are checked before any is written,
and `bundle.json` names the hash of each. Only what that names is taken.
"""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

from edged.errors import CorruptError, RefusedError
from edged.storage.bundles import DESCRIPTION, Bundle
from edged.storage.files import (
    disk_errors,
    fsync_directory,
    make_directory,
    publish_file,
    remove,
    staging_path,
    sweep,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

FOLDER = "bundles"
MOST_FILES = 64
_EPOCH = (1980, 1, 1, 0, 0, 0)
_BLOCK = 1 << 20


def pack_bundle(folder: Path, out: Path) -> int:
    """Write the bundle in `folder` as the file `out`; its size. The same bundle gives the same bytes.

    Raises
    ------
    BundleError, CorruptError
        When it is no whole bundle.
    StorageError
        When the disk refuses.
    """
    bundle = Bundle.open(folder)
    extra = sorted(path.name for path in folder.glob("*.sig"))
    staging = staging_path(out.parent, out.name)
    with disk_errors("packing the bundle", out):
        with zipfile.ZipFile(staging, "w", zipfile.ZIP_STORED) as archive:
            for name in (DESCRIPTION, *extra, *sorted(bundle.files)):
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), (folder / name).read_bytes())
        staging.replace(out)
        return out.stat().st_size


def unpack_bundle(chunks: Iterable[Path], folder: Path, max_bytes: int) -> Bundle:
    """Unpack a bundle file, whose pieces `chunks` are, as the new directory `folder`; the verified bundle.

    Raises
    ------
    RefusedError
        When the archive holds what no bundle does, or too much.
    BundleError, CorruptError
        When it is no whole bundle.
    StorageError
        When the disk refuses.
    """
    whole = staging_path(folder.parent, "whole")
    try:
        with disk_errors("unpacking the bundle", folder):
            with whole.open("wb") as file:
                for chunk in chunks:
                    file.write(chunk.read_bytes())
            folder.mkdir()
            _extract(whole, folder, max_bytes)
        bundle = Bundle.open(folder)
    finally:
        whole.unlink(missing_ok=True)
    strangers = {path.name for path in folder.iterdir()} - {DESCRIPTION, *bundle.files}
    if unknown := sorted(name for name in strangers if not name.endswith(".sig")):
        raise RefusedError("bundle.json does not name this file", where=unknown[0])
    return bundle


def _extract(whole: Path, folder: Path, max_bytes: int) -> None:
    try:
        with zipfile.ZipFile(whole) as archive:
            members = archive.infolist()
            _check(members, max_bytes)
            for member in members:
                with archive.open(member) as source, (folder / member.filename).open("wb") as target:
                    while block := source.read(_BLOCK):
                        target.write(block)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as problem:
        raise CorruptError(f"no bundle file: {problem}", where=whole.name) from None


def _check(members: list[zipfile.ZipInfo], max_bytes: int) -> None:
    if len(members) > MOST_FILES or sum(member.file_size for member in members) > max_bytes:
        raise RefusedError(
            f"{len(members)} files of {sum(member.file_size for member in members)} bytes, "
            f"{MOST_FILES} of {max_bytes} are taken",
            remedy="raise install.max_bytes",
        )
    names = [member.filename for member in members]
    for member in members:
        name = member.filename
        plain = name not in ("", ".", "..") and not set(name) & set("/\\\0") and len(name) <= 200
        if not plain or names.count(name) > 1 or name.startswith(".") or not _regular(member):
            raise RefusedError("a bundle file holds plain files, each once", where=repr(name[:80]))


def _regular(member: zipfile.ZipInfo) -> bool:
    kind = member.external_attr >> 28  # the type of the file where a Unix program has written it
    return member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1 and kind in (0, 8)


class InstalledBundles:
    """The bundles that came over the network: `bundles/<fingerprint>/` in the state directory."""

    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER

    def find(self, fingerprint: str | None) -> Path | None:
        """Where a bundle is, None where it is not installed."""
        if not fingerprint or not fingerprint.isalnum():
            return None
        folder = self._folder / fingerprint
        return folder if (folder / DESCRIPTION).is_file() else None

    def install(
        self, chunks: Iterable[Path], max_bytes: int, check: Callable[[Bundle], None], keep: set[str]
    ) -> Bundle:
        """Unpack, check and publish a bundle, durably; all others but those of `keep` are removed.

        `check` raises EdgedError for a bundle that is not wanted. Raises what `unpack_bundle` does, too.
        """
        make_directory(self._folder)
        sweep(self._folder)
        staging = staging_path(self._folder, "new")
        try:
            bundle = unpack_bundle(chunks, staging, max_bytes)
            check(bundle)
            final = self._folder / bundle.fingerprint
            if self.find(bundle.fingerprint) is None:
                self._publish(staging, final)
        finally:
            if staging.exists():
                remove(staging)
        for old in self._folder.iterdir():
            if old.name not in keep | {bundle.fingerprint}:
                remove(old)
        return Bundle.open(final)

    def _publish(self, staging: Path, final: Path) -> None:
        with disk_errors("installing the bundle", final):
            for path in sorted(staging.iterdir()):
                publish_file(path, path.read_bytes())
            staging.replace(final)
        fsync_directory(self._folder)
