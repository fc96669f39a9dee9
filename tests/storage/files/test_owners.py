"""Root restores for a service of another user, who must gain nothing by it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from edged.config.loader import load
from edged.device.admin.backup import restore
from edged.errors import StorageError
from edged.storage.backup import backup as backups
from edged.storage.backup import restore as restoring
from edged.storage.files.atomic import DirectoryLock
from tests.storage.backup.test_backup import ABOUT, contents, fill

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as another user")

SERVICE = (4242, 4243)  # user and group


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A backup of a state with everything."""
    backups.back_up(fill(tmp_path / "from"), tmp_path / "b.zip", *ABOUT, None)
    return tmp_path / "b.zip"


@pytest.fixture
def served() -> Iterator[Path]:
    """The state directory of a service, which another user than root owns and may reach."""
    with tempfile.TemporaryDirectory(prefix="edged-state-") as folder:
        Path(folder).chmod(0o755)
        state = Path(folder, "state")
        state.mkdir(mode=0o750)
        os.chown(state, *SERVICE)
        yield state


def restored_by_root(source: Path, state: Path, *, replace: bool = False) -> None:
    """As `edged restore` does it."""
    path = source.parent / "edged.yaml"
    path.write_text(
        "device: {id: press-7}\nmqtt: {host: localhost}\n"
        "stream: {topic: 's/#', features: 2, task: classify, classes: [ok, worn]}\n"
        f"storage: {{dir: {state}}}\n"
    )
    restore(load(path, {}), source, replace=replace)


def test_what_root_restores_belongs_to_the_owner_of_the_directory(backup: Path, served: Path) -> None:
    for replace in (False, True):
        restored_by_root(backup, served, replace=replace)
        assert {(path.stat().st_uid, path.stat().st_gid) for path in served.rglob("*")} == {SERVICE}
        assert os.geteuid() == 0
    assert contents(served) == contents(backup.parent / "from")


@pytest.mark.parametrize("name", ["edged.lock", restoring.RESTORING, restoring.RESTORED])
def test_links_in_a_state_directory_lead_root_nowhere(
    backup: Path, served: Path, tmp_path: Path, name: str
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("precious")
    aim = precious / "file" if name == "edged.lock" else precious
    (served / name).symlink_to(aim)
    os.lchown(served / name, *SERVICE)
    if name == "edged.lock":
        with pytest.raises(StorageError, match="symbolic link"):
            restored_by_root(backup, served)
        with pytest.raises(StorageError, match="symbolic link"):
            DirectoryLock(served).acquire()
    else:
        with suppress(StorageError):
            restored_by_root(backup, served)
    for path in (precious, precious / "file"):
        assert path.stat().st_uid == 0
    assert (precious / "file").read_text() == "precious"


def test_a_state_that_is_partly_roots_is_refused_before_anything_changes(backup: Path, served: Path) -> None:
    restored_by_root(backup, served)
    os.chown(served / "models" / "1", 0, 0)
    before = contents(served)
    with pytest.raises(StorageError, match=r"models/1: .*another user .*chown -Rh 4242"):
        restored_by_root(backup, served, replace=True)
    assert contents(served) == before
