"""What the Debian package and install.sh decide before anything is changed; the rest: `make test-systemd`."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEBIAN = ROOT / "deploy" / "debian"
INSTALL = ROOT / "deploy" / "install.sh"
SCRIPTS = [INSTALL, *(DEBIAN / name for name in ("preinst", "postinst", "prerm", "postrm"))]


def preinst(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script as it is in a package that knows schemas up to 3 and 2."""
    script = root / "preinst"
    script.write_text((DEBIAN / "preinst").read_text().replace("@SCHEMAS@", "samples.db=3 state.db=2"))
    return subprocess.run(
        ["sh", str(script), *arguments], capture_output=True, text=True, check=False,
        env=os.environ | {"DPKG_ROOT": str(root)},
    )  # fmt: skip


def database(path: Path, schema: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {schema}")
        db.execute("CREATE TABLE a (n INTEGER)")
    db.close()
    return path


@pytest.mark.parametrize("schema", [1, 3])
def test_state_that_the_package_knows_is_no_hindrance(tmp_path: Path, schema: int) -> None:
    database(tmp_path / "var/lib/edged/samples.db", schema)
    assert preinst(tmp_path, "upgrade", "9.0").returncode == 0


@pytest.mark.parametrize("schema", [4, 259, 70_000])
@pytest.mark.parametrize("folder", ["edged", "edged@press-7"])
@pytest.mark.parametrize("action", ["upgrade", "install"])
def test_state_of_a_newer_edged_refuses_an_older_package(
    tmp_path: Path, folder: str, schema: int, action: str
) -> None:
    database(tmp_path / "var/lib/edged/state.db", 2)
    found = database(tmp_path / "var/lib" / folder / "samples.db", schema)
    done = preinst(tmp_path, action, "9.0")
    assert done.returncode == 1
    assert f"{found} was written by a newer edged (schema {schema}, this one knows 3)" in done.stderr


def test_a_first_installation_finds_nothing_to_refuse(tmp_path: Path) -> None:
    done = preinst(tmp_path, "install")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_upgrade_that_is_taken_back_is_not_judged(tmp_path: Path) -> None:
    database(tmp_path / "var/lib/edged/samples.db", 9)
    assert preinst(tmp_path, "abort-upgrade", "9.0").returncode == 0


@pytest.mark.parametrize("arguments", [["--purge"], ["--wheel"], ["--nonsense"]])
def test_what_install_sh_does_not_understand_it_does_not_do(arguments: list[str]) -> None:
    done = subprocess.run(["sh", str(INSTALL), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("install.sh: ")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_sound(script: Path) -> None:
    subprocess.run(["sh", "-n", str(script)], check=True)
    if shutil.which("shellcheck") is not None:
        subprocess.run(["shellcheck", "--shell=sh", str(script)], check=True)


def test_schemas_of_a_wheel_are_those_of_its_databases() -> None:
    from edged.storage import journal, outbox_tables, sample_tables

    code = "import build, sys; print(build.schemas_of(build.Path(sys.argv[1])))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT)], cwd=DEBIAN, capture_output=True, text=True, check=True
    )
    known = {name: len(tables.MIGRATIONS) for name, tables in
             (("samples", sample_tables), ("state", journal), ("outbox", outbox_tables))}  # fmt: skip
    assert done.stdout.split() == [f"{name}.db={number}" for name, number in known.items()]


def test_versions_are_those_that_debian_sorts() -> None:
    code = (
        "import build, sys\n"
        "for wheel in sys.argv[1:]: print(build.debian_version(build.Path(wheel), build.SUITES['bookworm']))"
    )
    wheels = [f"edged-{version}-py3-none-any.whl" for version in ("1.2.0.dev3", "1.2.0rc1", "1.2.0")]
    done = subprocess.run(
        [sys.executable, "-c", code, *wheels], cwd=DEBIAN, capture_output=True, text=True, check=True
    )
    versions = done.stdout.split()
    assert versions == ["1.2.0~dev3-1+deb12", "1.2.0~rc1-1+deb12", "1.2.0-1+deb12"]
    for older, newer in pairwise(versions):
        subprocess.run(["dpkg", "--compare-versions", older, "lt", newer], check=True)
