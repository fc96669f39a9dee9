"""The directories of keys that have models of their own."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from edged.storage.models.key_folders import FOLDER, KEY_FILE, KeyFolders, KeyRecord, folder_name

STRANGE = ("", ".", "..", "a/b", "a\\b", "=a", "~a", "a.damaged-2026", "ü" * 80, "k" * 400, "a b", "\ud800")


def test_each_key_has_a_directory_of_its_own_and_is_known_again(tmp_path: Path) -> None:
    folders = KeyFolders(tmp_path)
    for number, key in enumerate(STRANGE):
        folders.make(key)
        folders.write(KeyRecord(key, consumed=number))
    assert {path.parent for path in (tmp_path / FOLDER).iterdir()} == {tmp_path / FOLDER}
    assert {record.key: record.consumed for record in folders.records().values()} == {
        key: number for number, key in enumerate(STRANGE)
    }
    folders.erase("a/b")
    assert set(folders.records()) == set(STRANGE) - {"a/b"}
    folders.erase()
    assert not folders.records()


@given(st.text(), st.text())
def test_no_two_keys_share_a_name(one: str, other: str) -> None:
    assert (folder_name(one) == folder_name(other)) == (one == other)
    assert not {"/", "\0"} & set(folder_name(one))


def test_without_a_readable_note_a_key_has_learned_nothing(tmp_path: Path) -> None:
    folders = KeyFolders(tmp_path)
    folders.make("a")
    folders.write(KeyRecord("a", consumed=70))
    (folders.of("a") / KEY_FILE).write_bytes(b"{}")
    assert folders.records() == {"a": KeyRecord("a")}


def test_what_is_damaged_is_set_aside(tmp_path: Path) -> None:
    folders = KeyFolders(tmp_path)
    folders.make("a")
    name = folders.set_aside("a", 0.0)
    assert (tmp_path / name).is_dir()
    assert not folders.records()
