"""Reading, verifying and publishing bundles: what the offline phase hands to a device.

A bundle is a directory with training artifacts, a base inference model and `bundle.json`, which names
the tensors and parameters and holds the SHA-256 of every file. Only the standard library is needed here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from edged.domain.bundle_contents import (
    PARAMETERS,
    REBUILD,
    BundleContents,
    FileEntry,
)
from edged.domain.json_fields import JsonObject
from edged.domain.stream.schema import Schema
from edged.errors import BundleError, CorruptError, StorageError, TrainingError
from edged.storage.files import checksummed_json
from edged.storage.files.atomic import DISK, STAGING, disk_errors, fsync_directory, staging_path
from edged.storage.models.external_data import external_places

FORMAT = 1
DESCRIPTION, SIGNATURE = "bundle.json", "bundle.sig"
MOST_FILES = 64
MOST_TEXT = 16 << 20  # bytes of bundle.json
MOST_PACKED = 0xFFFF_FFFF  # bytes of a bundle file
LONGEST_NAME = 200  # bytes
_UNPACK = "unpack it with `edged artifacts unpack`"
_LARGEST = 1 << 31  # of one dimension

CLASSIFYING = ("cross_entropy", "bce_with_logits")
MEASURING = ("mse", "l1")
# The name of a loss that came as a model of its own.
CUSTOM = "custom"


class Bundle(BundleContents):
    """A bundle directory that can be opened, checked and described."""

    @classmethod
    def open(cls, path: Path, *, verify: bool = True) -> Bundle:
        """Read the bundle in directory `path`; with `verify` every file is hashed.

        Raises BundleError when the directory is no bundle, or one of another format, or a file is missing;
        CorruptError when a file is not what `bundle.json` says.
        """
        where = str(path / DESCRIPTION)
        try:
            bundle = cls.from_json({**_read_description(path), "path": str(path)})
        except TrainingError as problem:
            field = problem.where.removeprefix(f"{cls.__name__}.")
            what = f"{field[:120]} is missing or wrong: {problem.what}"
            raise CorruptError(what, where=where, remedy=REBUILD) from problem
        if (wrong := _wrong_field(bundle)) is not None:
            raise CorruptError(wrong, where=where, remedy=REBUILD)
        if verify:
            bundle.verify()
        return bundle

    def verify(self) -> None:
        """Check presence, size and SHA-256 of every file, and that there is no other; see `open`."""
        for name, entry in self.files.items():
            file = self.path / name
            if not file.is_file():
                apart = name == PARAMETERS
                what = "its parameters are delivered apart, and" if apart else "this file of the bundle"
                remedy = "put the file that it was built with beside it" if apart else REBUILD
                raise BundleError(
                    f"{what} {'are ' if apart else 'is '}missing", where=str(file), remedy=remedy
                )
            with disk_errors("reading", file):
                same = file.stat().st_size == entry.bytes and FileEntry.of(file) == entry
            if not same:
                raise CorruptError("the file is not what bundle.json says", where=str(file), remedy=REBUILD)
            if name.endswith(".onnx"):
                self._check_places(file)
        self.refuse_others(but=".")

    def refuse_others(self, but: str | tuple[str, ...] = ()) -> None:
        """Raise BundleError where the directory holds another file whose name does not begin with `but`."""
        with disk_errors("reading", self.path):
            there = {file.name for file in self.path.iterdir() if not file.name.startswith(but)}
        if strange := sorted(there - {DESCRIPTION, SIGNATURE, *self.files}):
            raise BundleError(
                "this file is not part of the bundle", where=str(self.path / strange[0]), remedy="remove it"
            )

    def _check_places(self, file: Path) -> None:
        """Tensors of a model may lie in files of the bundle, and nowhere else."""
        try:
            with disk_errors("reading", file):
                strange = [place for place in external_places(file) if place not in self.files]
        except ValueError as problem:
            raise BundleError(
                f"this is no ONNX model: {problem}", where=str(file), remedy=REBUILD
            ) from problem
        if strange:
            raise BundleError(
                f"a tensor lies outside of the bundle, in {strange[0][:80]!r}",
                where=str(file),
                remedy="keep tensors in the model, or beside it in the bundle",
            )

    @property
    def inference_sha256(self) -> str:
        """What the base model must be; BundleError where `bundle.json` does not say it."""
        entry = self.files.get(self.inference_model.name)
        if entry is None:
            raise BundleError("bundle.json names no base model", where=str(self.path), remedy=REBUILD)
        return entry.sha256

    def check_schema(self, schema: Schema) -> None:
        """Raise BundleError where input width, outputs or loss do not fit the stream."""
        width = schema.measured * (1 + len(self.context))
        if self.input.width != width:
            beside = f" with context {list(self.context)}" if self.context else ""
            raise self._misfit(f"takes {self.input.width} features, the stream has {width}{beside}")
        losses = CLASSIFYING if schema.task == "classify" else MEASURING
        if self.loss not in (*losses, CUSTOM):
            raise self._misfit(
                f"was built with loss {self.loss}, task {schema.task} needs {' or '.join(losses)}"
            )
        if self.output.width not in self._fitting_outputs(schema):
            wanted = (
                f"{len(schema.classes)} classes" if schema.task == "classify" else f"{schema.targets} targets"
            )
            raise self._misfit(f"has {self.output.width} outputs, the stream has {wanted}")
        self._check_names(schema)

    def _check_names(self, schema: Schema) -> None:
        """What both sides name must have the same name: other things in equal number pass unnoticed."""
        pairs = (
            ("input", self.input.names, schema.names, "stream.features"),
            ("unit", self.input.units, schema.units, "stream.units"),
            ("class", self.output.names, schema.named_classes, "stream.classes"),
            ("target's unit", self.output.units, schema.target_units, "stream.target_units"),
        )
        for what, ours, theirs, where in pairs:
            if not ours or not theirs or ours == theirs:
                continue
            both = zip_longest(ours, theirs, fillvalue="nothing")
            number, (one, other) = next((i, pair) for i, pair in enumerate(both, 1) if pair[0] != pair[1])
            raise self._misfit(f"has {one!r} as {what} {number}, {where} has {other!r}")

    def _fitting_outputs(self, schema: Schema) -> tuple[int, ...]:
        if self.loss == "bce_with_logits" and schema.outputs == 2:
            return (1, 2)
        return (schema.outputs,)

    def _misfit(self, what: str) -> BundleError:
        return BundleError(
            f"the bundle {what}", where=str(self.path), remedy="build a bundle for this stream"
        )

    def to_json(self) -> JsonObject:
        """Return what `bundle.json` says, without its hash."""
        return {"format": FORMAT, **self.without("path")}


def seal(bundle: Bundle, names: Iterable[str]) -> Bundle:
    """Hash the named files of a finished directory and write its `bundle.json`, all made durable.

    Raises StorageError when that fails.
    """
    with disk_errors("sealing the bundle", bundle.path):
        sealed = replace(bundle, files={name: FileEntry.of(bundle.path / name) for name in sorted(names)})
        DISK.write(bundle.path / DESCRIPTION, checksummed_json.seal(sealed.to_json()))
        for name in (*sealed.files, DESCRIPTION):
            DISK.sync(bundle.path / name)
        DISK.sync(bundle.path)
    return sealed


def refuse_foreign(out: Path) -> None:
    """Raise BundleError when `out` holds something that is not a bundle and must not be replaced."""
    if not out.exists() or (out / DESCRIPTION).is_file():
        return
    if not out.is_dir() or any(out.iterdir()):
        raise BundleError(
            "exists and is no bundle, so it will not be replaced", where=str(out), remedy="name another path"
        )


def publish(staged: Path, out: Path) -> None:
    """Move the finished directory `staged` to `out` on the same file system; an old bundle there is replaced.

    Raises BundleError when `out` is something else; StorageError when the disk refuses.
    """
    refuse_foreign(out)
    retired = staging_path(out.parent, out.name)
    replacing = (out / DESCRIPTION).is_file()
    with disk_errors("publishing the bundle", out):
        if replacing:
            DISK.rename(out, retired)
        DISK.rename(staged, out)
        DISK.sync(out.parent)
        if replacing:
            DISK.remove(retired)


def finish_interrupted(out: Path) -> bool:
    """After a crash between the two renames of `publish`: put a whole bundle back in its place.

    Both the old and the new one lie beside `out` then, under temporary names; either will do.
    Nothing is done where `out` holds anything. Call it before temporary names are swept.

    Raises StorageError when the disk refuses.
    """
    if out.exists():
        return False
    for left in sorted(out.parent.glob(f"{STAGING}{out.name}-*")):
        try:
            Bundle.open(left)
        except (BundleError, StorageError):
            continue
        with disk_errors("putting the bundle back", out):
            DISK.rename(left, out)
        fsync_directory(out.parent)
        return True
    return False


def is_plain(name: str) -> bool:
    """Tell whether a name is one of a file in this very folder, on any system."""
    usual = name.isascii() and name.isprintable() and 0 < len(name) <= LONGEST_NAME
    return usual and not name.startswith(".") and not set(name) & set('/\\:*?"<>|')


def _read_description(path: Path) -> JsonObject:
    """Read `bundle.json` in directory `path`; raises BundleError or CorruptError."""
    file = path / DESCRIPTION
    try:
        if path.is_file():
            raise BundleError("is one file, a bundle is a directory here", where=str(path), remedy=_UNPACK)
        if file.stat().st_size > MOST_TEXT:
            raise CorruptError(f"is larger than {MOST_TEXT:,} bytes", where=str(file), remedy=REBUILD)
        text = file.read_bytes()
        data = json.loads(text.decode())
    except (FileNotFoundError, NotADirectoryError):
        raise BundleError("no bundle: bundle.json is missing", where=str(path), remedy=REBUILD) from None
    except OSError as problem:
        raise BundleError(f"cannot be read: {problem.strerror}", where=str(file)) from problem
    except (ValueError, RecursionError) as problem:
        raise CorruptError("is not valid JSON", where=str(file), remedy=REBUILD) from problem
    if not isinstance(data, dict):
        raise CorruptError("is not a JSON object", where=str(file), remedy=REBUILD)
    if data.get("format") != FORMAT:
        what = f"has format {data.get('format')!r}, this version reads format {FORMAT}"
        raise BundleError(what, where=str(file), remedy=REBUILD)
    return checksummed_json.unseal(text, file)


def _wrong_field(bundle: Bundle) -> str | None:
    """Find a value that its type alone does not rule out; it may come from anywhere."""
    for name in bundle.files:
        # The file list must not lead out of the directory.
        if not is_plain(name) or name == DESCRIPTION:
            return f"files: {name[:80]!r} is not a plain file name"
    if len(bundle.files) > MOST_FILES:
        return f"names {len(bundle.files)} files, {MOST_FILES} at most are taken"
    tensors = {"input": bundle.input, "output": bundle.output, "label": bundle.label}
    tensors |= {f"more_outputs[{at}]": tensor for at, tensor in enumerate(bundle.more_outputs)}
    for name, tensor in tensors.items():
        sizes = [size for size in tensor.shape if isinstance(size, int)]
        if not tensor.shape or not all(1 <= size <= _LARGEST for size in sizes):
            return f"{name}.shape is missing or wrong: expected sizes from 1 to {_LARGEST} and names"
    for name in ("standardise", "target_standardise"):
        if (names := getattr(bundle, name)) is not None and set(names) != {"mean", "scale"}:
            return f"{name} is missing or wrong: expected mean and scale"
    for name in ("version", "expires"):
        if (getattr(bundle, name) or 0) < 0:
            return f"{name} is missing or wrong: expected 0 or more"
    return None
