"""A bundle as one file: packed and unpacked, and nothing taken out of it that no bundle holds."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from edged.errors import BundleError, CorruptError, RefusedError
from edged.storage.files.checksummed_json import seal, unseal
from edged.storage.models.bundle_archive import InstalledBundles, pack_bundle, unpack_bundle
from edged.storage.models.bundles import Bundle
from tests.storage.models.test_bundles import make

LIMIT = 4 * 1024**2


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make(tmp_path / "source").path


@pytest.fixture
def packed(source: Path, tmp_path: Path) -> Path:
    pack_bundle(source, tmp_path / "one.edged")
    return tmp_path / "one.edged"


def test_what_was_packed_is_the_same_bundle(source: Path, packed: Path, tmp_path: Path) -> None:
    pack_bundle(source, tmp_path / "two.edged")
    assert packed.read_bytes() == (tmp_path / "two.edged").read_bytes()
    bundle = unpack_bundle(packed, tmp_path / "out", LIMIT)
    assert bundle.fingerprint == Bundle.open(source).fingerprint


EPOCH = (1980, 1, 1, 0, 0, 0)


def archive(path: Path, *members: tuple[Any, bytes], kind: int = zipfile.ZIP_STORED) -> Path:
    """As Python writes it: for plain stored files the bytes that `edged artifacts pack` writes."""
    with zipfile.ZipFile(path, "w", kind) as made:
        for name, content in members:
            made.writestr(zipfile.ZipInfo(name, EPOCH) if isinstance(name, str) else name, content, kind)
    return path


def link() -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("bundle.json", EPOCH)
    info.external_attr = 0o120777 << 16
    return info


@pytest.mark.parametrize(
    ("members", "kind", "problem"),
    [
        ([("../bundle.json", b"{}")], zipfile.ZIP_STORED, "plain files"),
        ([("/bundle.json", b"{}")], zipfile.ZIP_STORED, "plain files"),
        ([("a/bundle.json", b"{}")], zipfile.ZIP_STORED, "plain files"),
        ([("a\\bundle.json", b"{}")], zipfile.ZIP_STORED, "plain files"),
        ([(".hidden", b"{}")], zipfile.ZIP_STORED, "plain files"),
        ([(link(), b"/etc/passwd")], zipfile.ZIP_STORED, "plain files"),
        ([("bundle.json", bytes(1000))], zipfile.ZIP_DEFLATED, "plain files"),
        ([(f"f{n}", b"") for n in range(100)], zipfile.ZIP_STORED, "no more than 66 files"),
        ([("bundle.json", bytes(LIMIT + 1))], zipfile.ZIP_STORED, "max_bytes"),
        ([("bundle.json", b"not json")], zipfile.ZIP_STORED, "not valid JSON"),
        ([("other", b"")], zipfile.ZIP_STORED, "bundle.json is missing"),
    ],
    ids=[
        "up",
        "absolute",
        "folder",
        "backslash",
        "hidden",
        "link",
        "deflated",
        "many",
        "large",
        "text",
        "none",
    ],
)
def test_an_archive_that_is_no_bundle_is_refused(
    tmp_path: Path, members: list[tuple[Any, bytes]], kind: int, problem: str
) -> None:
    file = archive(tmp_path / "x.edged", *members, kind=kind)
    with pytest.raises((RefusedError, BundleError, CorruptError), match=problem):
        unpack_bundle(file, tmp_path / "out", LIMIT)


def test_any_zip_program_reads_what_is_packed_and_python_writes_the_same(
    source: Path, packed: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(packed) as read:
        assert read.testzip() is None
        members = [(info.filename, read.read(info)) for info in read.infolist()]
    assert {name for name, _ in members} == {path.name for path in source.iterdir()}
    assert archive(tmp_path / "same.edged", *members).read_bytes() == packed.read_bytes()


def test_a_name_that_comes_twice_is_refused(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        file = archive(tmp_path / "x.edged", ("bundle.json", b"{}"), ("bundle.json", b"{}"))
    with pytest.raises(RefusedError, match="each once"):
        unpack_bundle(file, tmp_path / "out", LIMIT)


def test_a_file_that_bundle_json_does_not_name_is_refused(packed: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(packed, "a") as more:
        more.writestr(zipfile.ZipInfo("extra.bin", EPOCH), b"x")
    with pytest.raises(BundleError, match=r"extra.bin: .*not part of the bundle"):
        unpack_bundle(packed, tmp_path / "out", LIMIT)


def test_installed_bundles_are_found_by_their_fingerprint_and_pruned(packed: Path, tmp_path: Path) -> None:
    installed = InstalledBundles(tmp_path / "state")
    bundle = installed.install(packed, LIMIT, lambda _: None, set())
    assert installed.find(bundle.fingerprint) == bundle.path
    assert installed.find("../x") is None
    assert installed.find(None) is None
    again = installed.install(packed, LIMIT, lambda _: None, set())
    assert again.path == bundle.path

    def refuse(_: Bundle) -> None:
        raise RefusedError("not signed")

    other = InstalledBundles(tmp_path / "other")
    with pytest.raises(RefusedError, match="not signed"):
        other.install(packed, LIMIT, refuse, set())
    assert list((tmp_path / "other" / "bundles").iterdir()) == []
    (tmp_path / "state" / "bundles" / "old").mkdir()
    installed.install(packed, LIMIT, lambda _: None, set())
    assert [path.name for path in (tmp_path / "state" / "bundles").iterdir()] == [bundle.fingerprint]


def test_bundle_json_of_another_bundle_does_not_fit_the_files(source: Path, tmp_path: Path) -> None:
    text = dict(unseal((source / "bundle.json").read_bytes(), source))
    name = min(text["files"])
    text["files"][name]["sha256"] = "0" * 64
    members = [(n, (source / n).read_bytes()) for n in text["files"]]
    file = archive(tmp_path / "x.edged", ("bundle.json", seal(text)), *members)
    with pytest.raises(CorruptError, match=r"bundle.json says"):
        unpack_bundle(file, tmp_path / "out", LIMIT)
