"""Backups: every byte counts, nothing comes in by a trick, and a restore is whole or has not been."""

from __future__ import annotations

import shutil
import stat
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.clock import VirtualClock
from edged.domain.commands.delivery_policy import MessageKind, OutboxMessage
from edged.domain.stream.schema import Schema
from edged.errors import CorruptError, EdgedError, FormatError, RefusedError
from edged.signing import Keys, new_pair, sign
from edged.storage.backup import archive, restore
from edged.storage.backup import backup as backups
from edged.storage.backup.archive import BackupManifest
from edged.storage.files.database import connect
from edged.storage.models.checkpoints import Checkpoints
from edged.storage.models.registry import Registry
from edged.storage.outbox.queue import Outbox
from edged.storage.samples.log import SampleLog
from tests.device.linear import samples
from tests.storage.disks import PowerCutError, TestedDisk
from tests.storage.stream import stored_inputs

SCHEMA = Schema((), 2, "classify", ("ok", "worn"))
ABOUT = ("press-7", 1.7e9)  # device and time
WEIGHTS = b"a model's weights"


def anything(_: object) -> None:
    """Restores what comes."""


def fill(state: Path, *, model: bytes = WEIGHTS, rows: int = 50) -> Path:
    """A state directory with something of everything."""
    with Registry.open(state) as registry:
        staging = state / "candidates" / "1"
        staging.mkdir(parents=True)
        (staging / "model.onnx").write_bytes(model)
        record = registry.add(staging, created=1.0, source="training")
        registry.set_champion(record.version, "first", 2.0)
        registry.next_boot()
        registry.set_value("consumed", 7)
    with SampleLog.open(state / "samples.db", SCHEMA) as log:
        log.commit(samples(1, np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)))
    outbox = Outbox.open(state / "outbox.db", max_bytes=1 << 20, max_age=1e6, clock=VirtualClock(1.7e9))
    with closing(outbox):
        list(outbox.put([(OutboxMessage(MessageKind.EVENT, "e", b"{}"), False)]))
    return state


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A backup of a state with everything."""
    backups.back_up(fill(tmp_path / "from"), tmp_path / "b.zip", *ABOUT, None)
    return tmp_path / "b.zip"


def restored(
    source: Path,
    state: Path,
    *,
    replace: bool = False,
    trusted: Callable[[bytes, bytes], bool] | None = None,
    check: Callable[[Path], None] = anything,
) -> backups.RestoreReport:
    with source.open("rb") as content:
        return backups.restore(content, state, replace=replace, trusted=trusted, check=check)


def contents(state: Path) -> dict[str, Any]:
    """What a state holds, in terms of its own."""
    with Registry.open(state) as registry:
        champion = registry.champion()
        assert champion is not None
        found: dict[str, Any] = {
            "model": registry.verify(champion).read_bytes(),
            "consumed": registry.get_value("consumed"),
            "repaired": registry.repaired,
        }
    with SampleLog.open(state / "samples.db", SCHEMA, readonly=True):
        found["inputs"] = stored_inputs(state / "samples.db", SCHEMA.width).tobytes()
    outbox = Outbox.open(state / "outbox.db", max_bytes=1 << 20, max_age=1e6, clock=VirtualClock(1.7e9))
    with closing(outbox):
        found["outbox"] = outbox.waiting
    return found


def test_what_was_backed_up_comes_back(backup: Path, tmp_path: Path) -> None:
    report = restored(backup, tmp_path / "to")
    assert (report.about.device, report.about.champion, report.about.samples, report.signed) == (
        "press-7",
        1,
        50,
        False,
    )
    names = {path.name for path in (tmp_path / "to").iterdir()}
    assert names == {"models", "state.db", "samples.db", "outbox.db"}
    assert contents(tmp_path / "to") == contents(tmp_path / "from")
    with Registry.open(tmp_path / "to") as registry:
        assert registry.boots() == 1 + backups.BOOTS_AHEAD, "no message gets a name that was given before"


def test_any_program_can_list_a_backup(backup: Path) -> None:
    with zipfile.ZipFile(backup) as listed:
        assert listed.testzip() is None
        names = listed.namelist()
    assert names[0] == "backup.json"
    assert {"models/1/model.onnx", "models/champion", "samples.db", "state.db"} < set(names)


def test_a_backup_leaves_nothing_behind_and_changes_nothing(tmp_path: Path) -> None:
    state = fill(tmp_path / "from")
    before = {path: path.stat().st_size for path in state.rglob("*")}
    backups.back_up(state, tmp_path / "b.zip", *ABOUT, None)
    assert {path: path.stat().st_size for path in state.rglob("*") if path.suffix[:4] != ".db-"} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.zip", "from"]


def test_a_backup_beside_a_writer_is_of_one_moment(tmp_path: Path) -> None:
    state = fill(tmp_path / "from")
    with SampleLog.open(state / "samples.db", SCHEMA) as log:
        log.commit(samples(51, np.ones((25, 2), np.float32)))  # in the write-ahead log alone
        backups.back_up(state, tmp_path / "b.zip", *ABOUT, None)
        log.commit(samples(76, np.ones((25, 2), np.float32)))
    assert restored(tmp_path / "b.zip", tmp_path / "to").about.samples == 75


# ---- damage and tricks ---------------------------------------------------------------------------


def refuses(source: Path, state: Path) -> None:
    """Nothing of it is restored, and the state directory stays empty."""
    with pytest.raises(EdgedError):
        restored(source, state)
    assert list(state.iterdir()) == []


def test_a_flipped_bit_anywhere_is_noticed_or_changes_nothing(backup: Path, tmp_path: Path) -> None:
    whole, rng = backup.read_bytes(), np.random.default_rng(0)
    with zipfile.ZipFile(backup) as read:
        written = {name: read.read(name) for name in read.namelist()}
    refused = 0
    damaged = tmp_path / "damaged.zip"
    places = [
        *rng.integers(len(whole), size=150).tolist(),
        *range(0, 700, 7),
        *range(len(whole) - 9, len(whole)),
    ]
    for place in places:
        content = bytearray(whole)
        content[place] ^= 1 << int(rng.integers(8))
        damaged.write_bytes(content)
        folder = tmp_path / str(place)
        try:
            with damaged.open("rb") as source, archive.BackupReader(source, "damaged") as packed:
                assert packed.manifest == written.pop("backup.json", packed.manifest)
                packed.extract(folder)
        except EdgedError:
            refused += 1
            continue
        for path in folder.rglob("*"):
            if path.is_file():
                assert path.read_bytes() == written[path.relative_to(folder).as_posix()]
    assert refused > 0.7 * len(places)


def test_a_backup_that_is_cut_off_or_longer(backup: Path, tmp_path: Path) -> None:
    whole, damaged = backup.read_bytes(), tmp_path / "damaged.zip"
    for length in (0, 1, 511, 512, 5000, len(whole) // 2, len(whole) - 1):
        damaged.write_bytes(whole[:length])
        refuses(damaged, tmp_path / "to")
    for more in (b"\0", b"x", bytes(512)):
        damaged.write_bytes(whole + more)
        refuses(damaged, tmp_path / "to")


def packed(path: Path, names: list[str], content: bytes = b"x") -> Path:
    """A backup of these names with a right manifest."""
    file = path.with_suffix(".content")
    file.write_bytes(content)
    with path.open("wb") as target:
        about = BackupManifest("1.0", *ABOUT, backups.FORMAT, None, 0)
        archive.write(target, about, dict.fromkeys(names, file), None)
    return path


@pytest.mark.parametrize(
    "names",
    [
        ["../state.db"],
        ["/etc/passwd"],
        ["models/../../x"],
        ["models//x"],
        [".restored/x"],
        ["models/.hidden"],
        ["models/a\\b"],
        ["models/ü"],
        ["models/1", "models/1/model.onnx"],
        ["models/a/b/c/d/e"],
        ["edged.lock"],
        ["boot.json"],
        ["samples.db-wal"],
        [""],
    ],
)
def test_names_that_no_backup_has(names: list[str], tmp_path: Path) -> None:
    source = packed(tmp_path / "b.zip", ["state.db", *names])
    with pytest.raises(RefusedError):
        restored(source, tmp_path / "to")
    assert list((tmp_path / "to").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.content", "b.zip", "to"]


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFDIR])
def test_members_that_are_no_files(backup: Path, tmp_path: Path, kind: int) -> None:
    """A link in the place of a file whose hash is right."""
    same = tmp_path / "same.zip"
    for file, mode in ((same, 0), (tmp_path / "t.zip", kind)):
        with zipfile.ZipFile(backup) as whole, zipfile.ZipFile(file, "w") as made:
            for member in whole.infolist():
                content = whole.read(member)
                if member.filename == "models/champion":
                    member.external_attr |= mode << 16
                made.writestr(member, content)
    assert same.read_bytes() == backup.read_bytes()
    refuses(tmp_path / "t.zip", tmp_path / "to")


def test_members_that_are_packed(backup: Path, tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(backup) as whole,
        zipfile.ZipFile(tmp_path / "t.zip", "w", zipfile.ZIP_DEFLATED) as made,
    ):
        for member in whole.infolist():
            made.writestr(member.filename, whole.read(member))
    refuses(tmp_path / "t.zip", tmp_path / "to")


def test_archives_of_others(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as made:
        made.writestr("state.db", b"")
    refuses(tmp_path / "t.zip", tmp_path / "to")
    (tmp_path / "t.zip").write_bytes(b"PK\x03\x04" + bytes(2000))
    refuses(tmp_path / "t.zip", tmp_path / "to")


def test_a_backup_of_another_format(backup: Path, tmp_path: Path) -> None:
    with closing(connect(tmp_path / "from" / "samples.db")) as db:
        db.execute("PRAGMA user_version = 99")
        db.execute(f"PRAGMA application_id = {0x65640000 + 99}")
    with pytest.raises(FormatError, match="format 99"):
        backups.back_up(tmp_path / "from", tmp_path / "n.zip", *ABOUT, None)
    source = packed(tmp_path / "f.zip", ["state.db"])
    with pytest.raises(EdgedError):
        restored(source, tmp_path / "to")


def test_a_damaged_database_is_not_backed_up(tmp_path: Path) -> None:
    state = fill(tmp_path / "from", rows=2000)
    content = bytearray((state / "samples.db").read_bytes())
    content[20_000:60_000] = bytes(40_000)
    (state / "samples.db").write_bytes(content)
    with pytest.raises(CorruptError, match=r"samples\.db"):
        backups.back_up(state, tmp_path / "b.zip", *ABOUT, None)
    assert not (tmp_path / "b.zip").exists()


def test_a_damaged_checkpoint_stays_behind(tmp_path: Path) -> None:
    state = fill(tmp_path / "from")
    folder = state / "checkpoints"
    checkpoints = Checkpoints(folder, 3)
    for content in (b"e", b"g"):
        staging = checkpoints.stage()
        (staging / "engine").write_bytes(content)
        checkpoints.publish(staging, {"a": 1}, {})
    (folder / "1" / "engine").write_bytes(b"f")
    told = backups.back_up(state, tmp_path / "b.zip", *ABOUT, None)
    restored(tmp_path / "b.zip", tmp_path / "to")
    assert told.about.champion == 1
    assert [path.name for path in (tmp_path / "to" / "checkpoints").iterdir()] == ["2"]


# ---- signatures ----------------------------------------------------------------------------------


def test_a_backup_counts_when_it_is_signed_by_the_right_key(tmp_path: Path) -> None:
    pairs = [(tmp_path / name, new_pair(tmp_path / name)) for name in ("k1", "k2")]
    state = fill(tmp_path / "from")
    backups.back_up(state, tmp_path / "b.zip", *ABOUT, lambda text: sign(text, pairs[0][0]))
    backups.back_up(state, tmp_path / "plain.zip", *ABOUT, None)

    def by(public: Path) -> Callable[[bytes, bytes], bool]:
        return lambda text, mark: Keys([public]).signer(text, mark) is not None

    for source, public in (("b.zip", pairs[1][1]), ("plain.zip", pairs[0][1])):
        with pytest.raises(RefusedError, match="signed"):
            restored(tmp_path / source, tmp_path / "to", trusted=by(public))
        assert list((tmp_path / "to").iterdir()) == []
    assert restored(tmp_path / "b.zip", tmp_path / "to", trusted=by(pairs[0][1])).signed
    assert restored(tmp_path / "b.zip", tmp_path / "unasked").signed


# ---- over what is there, and power cuts ----------------------------------------------------------


def test_a_state_that_is_there_goes_only_when_asked(backup: Path, tmp_path: Path) -> None:
    there = fill(tmp_path / "to", model=b"another")
    (there / "notes.txt").write_text("mine")
    before = contents(there)
    with pytest.raises(RefusedError, match="--replace"):
        restored(backup, there)
    assert contents(there) == before
    restored(backup, there, replace=True)
    assert contents(there) == contents(tmp_path / "from")
    assert (there / "notes.txt").read_text() == "mine"
    assert not list(there.glob(".re*"))


def test_a_backup_is_for_its_owner_alone(backup: Path) -> None:
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600


def test_what_the_check_refuses_changes_nothing(backup: Path, tmp_path: Path) -> None:
    there = fill(tmp_path / "to", model=b"another")
    before = contents(there)

    def refuse(unpacked: Path) -> None:
        assert (unpacked / "models" / "1" / "model.onnx").read_bytes() == WEIGHTS
        raise RefusedError("another stream")

    with pytest.raises(RefusedError, match="another stream"):
        restored(backup, there, replace=True, check=refuse)
    assert contents(there) == before


def test_a_power_cut_at_any_moment_leaves_the_old_state_or_the_new_one(tmp_path: Path) -> None:
    old, new = fill(tmp_path / "old", model=b"another"), fill(tmp_path / "new")
    shutil.copytree(new, old / restore.RESTORED)  # as it is after the commit point
    wanted, steps = contents(new), 0
    while True:
        there = shutil.copytree(old, tmp_path / f"to{steps}")
        disk = TestedDisk(steps, PowerCutError())
        try:
            restore.finish(there, disk=disk)
        except PowerCutError:
            restore.finish(there)
        else:
            break
        assert (there / "models" / "1" / "model.onnx").read_bytes() == WEIGHTS, disk.operations
        assert not list(there.glob(".re*"))
        steps += 1
        if steps % 5 == 0:
            assert contents(there) == wanted
    assert steps > 20


def test_a_power_cut_before_the_commit_point_leaves_the_old_state(backup: Path, tmp_path: Path) -> None:
    there = fill(tmp_path / "to", model=b"another")
    before = contents(there)

    def cut(unpacked: Path) -> None:
        raise PowerCutError

    with pytest.raises(PowerCutError):
        restored(backup, there, replace=True, check=cut)
    (there / restore.RESTORING / "models").mkdir(
        parents=True, exist_ok=True
    )  # the process had no time to tidy
    assert not restore.finish(there)
    assert contents(there) == before
    assert not list(there.glob(".re*"))
