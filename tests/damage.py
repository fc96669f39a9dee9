"""What may happen to a bundle on its way, by accident or on purpose: as a directory and as one file."""

from __future__ import annotations

import json
import random
import shutil
import struct
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

from edged.domain.bundle_contents import FileEntry
from edged.signing import sign
from edged.storage.files.checksummed_json import seal, unseal
from edged.storage.models.bundles import DESCRIPTION, SIGNATURE

Rng = random.Random

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 10**30, float("nan"), "", "x" * 300, "../x", "/etc/passwd", "a/b", "a\\b", "a\0b",
    "\ud800", ".hidden", "é", [], {}, [[]], {"name": "x"}, [1, "a", None],
)  # fmt: skip


# ---- bytes -------------------------------------------------------------------------------------


def changed(rng: Rng, content: bytes) -> bytes:
    """The same bytes, with something that is not as it was."""
    made = rng.choice((_flip, _flip, _flip, _overwrite, _cut, _drop, _repeat, _insert, _exchange))(
        rng, content
    )
    return made if made != content else _flip(rng, content)


def _flip(rng: Rng, content: bytes) -> bytes:
    if not content:
        return b"\x00"
    made = bytearray(content)
    made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    return bytes(made)


def _overwrite(rng: Rng, content: bytes) -> bytes:
    start = rng.randrange(len(content) + 1)
    return content[:start] + rng.randbytes(rng.randint(1, 40)) + content[start + 40 :]


def _cut(rng: Rng, content: bytes) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _drop(rng: Rng, content: bytes) -> bytes:
    start = rng.randrange(len(content) + 1)
    return content[:start] + content[start + rng.randint(1, 60) :]


def _repeat(rng: Rng, content: bytes) -> bytes:
    start = rng.randrange(len(content) + 1)
    return content[:start] + content[start : start + rng.randint(1, 60)] + content[start:]


def _insert(rng: Rng, content: bytes) -> bytes:
    start = rng.randrange(len(content) + 1)
    return content[:start] + rng.randbytes(rng.randint(1, 30)) + content[start:]


def _exchange(rng: Rng, content: bytes) -> bytes:
    one, other = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[other:] + content[one:other] + content[:one]


# ---- a directory -------------------------------------------------------------------------------


def any_byte(rng: Rng, bundle: Path) -> None:
    """Bytes of any file, the description and the signature among them."""
    file = _any(rng, bundle)
    file.write_bytes(changed(rng, file.read_bytes()))


def missing(rng: Rng, bundle: Path) -> None:
    """A file that is not there."""
    _any(rng, bundle).unlink()


def another(rng: Rng, bundle: Path) -> None:
    """A file, a folder or a link more."""
    name = bundle / rng.choice(("more.onnx", "z", ".hidden", "model.onnx.data", "bundle.json.old"))
    rng.choice((lambda: name.write_bytes(b""), name.mkdir, lambda: name.symlink_to("/etc/passwd")))()


def exchanged(rng: Rng, bundle: Path) -> None:
    """Two files with each other's names."""
    one, other = rng.sample(sorted(bundle.iterdir()), 2)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def not_a_file(rng: Rng, bundle: Path) -> None:
    """A folder, or a link to something else, in place of a file."""
    file = _any(rng, bundle)
    file.unlink()
    rng.choice((file.mkdir, lambda: file.symlink_to("/etc/passwd"), lambda: file.symlink_to(file.name)))()


def description(rng: Rng, bundle: Path) -> None:
    """Values of `bundle.json`, written again as someone would who knows the form."""
    file = bundle / DESCRIPTION
    before = unseal(file.read_bytes(), file)
    values = json.loads(json.dumps(before))
    while values == before:
        inner = values
        for _ in range(rng.randint(0, 2)):
            below = [value for value in inner.values() if isinstance(value, dict) and value]
            inner = rng.choice(below) if below else inner
        key = rng.choice(sorted(inner))
        if rng.random() < 0.3:
            inner[str(rng.choice(ODD))] = inner.pop(key)
        else:
            inner[key] = rng.choice(ODD)
    file.write_bytes(seal(values))


def hashed_again(rng: Rng, bundle: Path) -> None:
    """Another file, and a description that fits it."""
    file = bundle / DESCRIPTION
    values = unseal(file.read_bytes(), file)
    name = rng.choice(sorted(values["files"]))
    (bundle / name).write_bytes(changed(rng, (bundle / name).read_bytes()))
    values["files"][name] = vars(FileEntry.of(bundle / name))
    file.write_bytes(seal(values))


def signature(rng: Rng, bundle: Path) -> None:
    """A signature of nothing, of something else, or by nobody we know."""
    file = bundle / SIGNATURE
    message = (
        rng.choice((b"", b"edged-bundle-1\n", b"edged-bundle-2\n")) + (bundle / DESCRIPTION).read_bytes()
    )
    by_another = sign(b"edged-bundle-1\n" + (bundle / DESCRIPTION).read_bytes(), bundle.parent / "other")
    own = file.read_bytes()
    file.write_bytes(rng.choice((b"", bytes(64), rng.randbytes(64), by_another, own * 2, own[::-1], message)))


CHANGES = (any_byte, any_byte, missing, another, exchanged, not_a_file, description, hashed_again, signature)


def _any(rng: Rng, bundle: Path) -> Path:
    return rng.choice(sorted(path for path in bundle.iterdir() if path.is_file()))


def damaged_copy(rng: Rng, whole: Path, to: Path) -> str:
    """A copy of the directory `whole` with something changed; what."""
    shutil.copytree(whole, to)
    change = rng.choice(CHANGES)
    change(rng, to)
    return change.__name__


# ---- one file ----------------------------------------------------------------------------------


def damaged_file(rng: Rng, content: bytes) -> tuple[str, bytes]:
    """What was done to a bundle file, and its bytes."""
    trick = rng.choice((changed, changed, changed, header, directory, end, before, behind, written_anew))
    made = trick(rng, content)
    return trick.__name__, made if made != content else changed(rng, content)


def header(rng: Rng, content: bytes) -> bytes:
    """One field of what is said before a file, such as its flags, method, sizes or length of its name."""
    return _field(
        rng, content, b"PK\x03\x04", ((4, 2), (6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2))
    )


def directory(rng: Rng, content: bytes) -> bytes:
    """One field of an entry in the directory at the end, so that the two contradict each other."""
    places = ((4, 2), (6, 2), (8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (38, 4), (42, 4))
    return _field(rng, content, b"PK\x01\x02", places)


def end(rng: Rng, content: bytes) -> bytes:
    """One field of the end: numbers of disks and entries, size and place of the directory, a comment."""
    return _field(rng, content, b"PK\x05\x06", ((4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)))


def _field(rng: Rng, content: bytes, mark: bytes, places: tuple[tuple[int, int], ...]) -> bytes:
    starts = [at for at in range(len(content)) if content.startswith(mark, at)]
    at, size = rng.choice(places)
    position = rng.choice(starts) + at
    value = rng.choice((0, 1, 8, 45, 0x800, 0xFFFF, 0xFFFFFFFF, rng.getrandbits(32)))
    return content[:position] + struct.pack("<I", value)[:size] + content[position + size :]


def before(rng: Rng, content: bytes) -> bytes:
    """Something in front, as in a program that unpacks itself, or another archive."""
    return rng.choice((b"#!/bin/sh\n", b"\0", content, b"PK\x03\x04")) + content


def behind(rng: Rng, content: bytes) -> bytes:
    """Something after the end: a comment, an archive of the same, zip64's end."""
    return content + rng.choice(
        (b"\0", b"comment", content, b"PK\x06\x06" + bytes(52), b"PK\x06\x07" + bytes(16))
    )


def written_anew(rng: Rng, content: bytes) -> bytes:
    """As another program would write it: packed, with folders, links, dates, and too many."""
    with zipfile.ZipFile(BytesIO(content)) as whole:
        members = [(info.filename, whole.read(info)) for info in whole.infolist()]
    made = BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in members:
            info = zipfile.ZipInfo(
                name, (2026, 1, 1, 0, 0, 0) if rng.random() < 0.5 else (1980, 1, 1, 0, 0, 0)
            )
            archive.writestr(info, data, rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        odd = rng.choice(
            ("../up", "/root", "a/b", "C:\\x", "bundle.json ", ".hidden", "\u202egnp.x", "x" * 400)
        )
        tricks: tuple[list[tuple[zipfile.ZipInfo | str, bytes]], ...] = (
            [(link, b"/etc/passwd")],
            [(odd, b"x")],
            [("large", bytes(5 << 20))],
            [(f"f{n}", b"") for n in range(70)],
            [],
        )
        for what, data in rng.choice(tricks):
            archive.writestr(what, data, zipfile.ZIP_DEFLATED)
    return made.getvalue()
