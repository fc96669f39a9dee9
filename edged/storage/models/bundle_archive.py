"""A bundle as one file, `.edged`: an archive of the bundle's files; and bundles that came as such a file.

Names, number and sizes of its members are checked before any is written, and `bundle.json` names the hash of
each. Only what that names is taken.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from edged.domain.bundle_contents import FileEntry
from edged.errors import BundleError, RefusedError, StorageError
from edged.storage.files import atomic
from edged.storage.models.bundles import (
    DESCRIPTION,
    MOST_FILES,
    MOST_PACKED,
    SIGNATURE,
    Bundle,
    is_plain,
    publish,
)
from edged.storage.models.registry import Registry
from edged.storage.models.signatures import open_bundle

UNPACKED, FOLDER = "unpacked", "bundles"


def pack_bundle(folder: Path, out: Path) -> int:
    """Write the bundle in `folder` as the file `out`; its size. The same bundle gives the same bytes.

    Raises BundleError or CorruptError when it is no whole bundle; RefusedError when it is too large for this
    form; StorageError when the disk refuses.
    """
    from edged.storage.files.archive import ArchiveWriter, blocks_of

    bundle = Bundle.open(folder)
    signature = [SIGNATURE] if (folder / SIGNATURE).is_file() else []
    with atomic.new_file(out, 0o666) as target, ArchiveWriter(target) as archive:
        for name in (DESCRIPTION, *signature, *sorted(bundle.files)):
            file = folder / name
            if target.tell() + (size := file.stat().st_size) > MOST_PACKED:
                raise RefusedError("too large for one file", where=str(file), remedy="copy the directory")
            archive.add(name, size, blocks_of(file))
    return out.stat().st_size


def unpack_bundle(file: Path, folder: Path, max_bytes: int = MOST_PACKED) -> Bundle:
    """Unpack a bundle file as the new directory `folder`, durably; the verified bundle.

    Raises RefusedError when the archive holds what no bundle does, or too much; BundleError or CorruptError
    when it is no whole bundle; StorageError when the disk refuses.
    """
    with atomic.disk_errors("unpacking the bundle", folder):
        folder.mkdir()
        with file.open("rb") as source:
            _extract(source, folder, max_bytes)
        for path in (*folder.iterdir(), folder):
            atomic.DISK.sync(path)
    return Bundle.open(folder)


def _extract(source: BinaryIO, folder: Path, max_bytes: int) -> None:
    from edged.storage.files.archive import ArchiveReader  # most daemons never need it

    remedy = "fetch it again, or pack it again"
    with ArchiveReader(source, "bundle file", remedy, is_plain, MOST_FILES + 2) as archive:
        if sum(member.file_size for member in archive.members) > max_bytes:
            raise RefusedError(f"more than {max_bytes:,} bytes", remedy="raise install.max_bytes")
        for member in archive.members:
            with (folder / member.filename).open("xb") as target:
                target.writelines(archive.blocks(member))


@contextmanager
def as_folder(path: Path) -> Iterator[Path]:
    """A bundle as a directory, for as long as this lasts, where `path` is a bundle file.

    Raises what `unpack_bundle` does; a directory is given as it is.
    """
    if not path.is_file():
        yield path
        return
    if path.suffix == ".onnx":
        remedy = "`edged artifacts check` looks at a model, `build` makes a bundle of it"
        raise BundleError("this is a model, not a bundle", where=str(path), remedy=remedy)
    with tempfile.TemporaryDirectory(prefix="edged-bundle-") as temporary:
        folder = Path(temporary) / path.name.removesuffix(".edged")
        unpack_bundle(path, folder)
        yield folder


def unpack_to(
    file: Path,
    parent: Path,
    name: Callable[[Bundle], str],
    check: Callable[[Bundle], object],
    max_bytes: int = MOST_PACKED,
) -> Bundle:
    """Unpack a bundle file, durably, as a directory in `parent` with this name, unless it is there already.

    `check` raises EdgedError for a bundle that must not come there; `unpack_bundle` raises others.
    """
    staging = atomic.staging_path(parent, "unpacked")
    try:
        bundle = unpack_bundle(file, staging, max_bytes)
        check(bundle)
        out = parent / name(bundle)
        if not (out / DESCRIPTION).is_file():
            publish(staging, out)
    finally:
        if staging.exists():
            atomic.remove(staging)
    return Bundle.open(out, verify=False)


def unpacked(path: Path, state: Path, keys: Sequence[Path]) -> Path:
    """Where the bundle file at `path` is unpacked in the state directory, once for each content of the file.

    Raises what `unpack_bundle` does, and as `open_bundle` where keys are given.
    """
    place = state / UNPACKED
    with atomic.disk_errors("reading the bundle", path):
        name = FileEntry.of(path).sha256
    atomic.make_directory(place)
    atomic.sweep(place)
    if (place / name).exists() and not _whole(place / name, keys):
        atomic.remove(place / name)
    if not (place / name).exists():
        unpack_to(path, place, lambda _: name, lambda bundle: open_bundle(bundle.path, keys))
    keep_only(place, {name})
    return place / name


def keep_only(place: Path, names: Collection[str]) -> None:
    """Remove all bundles in a directory but those of these names."""
    for old in place.iterdir():
        if old.name not in names:
            atomic.remove(old)


def _whole(folder: Path, keys: Sequence[Path]) -> bool:
    try:
        open_bundle(folder, keys)
    except (BundleError, RefusedError, StorageError):
        return False
    return True


class InstalledBundles:
    """The bundles that came over the network: `bundles/<fingerprint>/` in the state directory."""

    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER

    def find(self, fingerprint: str | None) -> Path | None:
        """Return the directory of a bundle; None if no bundle has this fingerprint."""
        if not fingerprint or not fingerprint.isalnum():
            return None
        folder = self._folder / fingerprint
        return folder if (folder / DESCRIPTION).is_file() else None

    def install(self, file: Path, max_bytes: int, check: Callable[[Bundle], None], keep: set[str]) -> Bundle:
        """Unpack, check and publish the bundle in a file, durably; remove all others but those of `keep`.

        `check` raises EdgedError for a bundle that must not be installed; `unpack_bundle` raises others.
        """
        atomic.make_directory(self._folder)
        atomic.sweep(self._folder)
        bundle = unpack_to(file, self._folder, lambda one: one.fingerprint, check, max_bytes)
        keep_only(self._folder, keep | {bundle.fingerprint})
        return bundle


class ActiveBundle:
    """The bundle that the champion belongs to, from which the device trains.

    An installed bundle is active from the moment on in which its model takes over, and until a rollback to a
    model of another bundle.

    `configured`, that of `model.bundle`, is active unless the champion's record in `registry` names one of
    the `installed`; if there are any public `keys`, one of them must have signed an installed bundle.
    """

    def __init__(
        self, configured: Bundle, installed: InstalledBundles, registry: Registry, keys: Sequence[Path]
    ) -> None:
        self._configured, self._installed = configured, installed
        self._registry, self._keys = registry, keys

    def path(self) -> Path:
        """Return the directory of the active bundle."""
        version = self._registry.champion()
        own = None if version is None else self._registry.get(version).data.bundle
        return self._installed.find(own) or self._configured.path

    def open(self) -> Bundle:
        """Open the active bundle; an installed one is verified.

        Raises EdgedError when it is damaged or not signed by one of the keys.
        """
        path = self.path()
        return self._configured if path == self._configured.path else open_bundle(path, self._keys)
