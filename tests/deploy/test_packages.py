"""What the Debian package and install.sh decide before anything is changed; the rest: `make test-systemd`."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from edged.config.loader import load

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
    from edged.storage.journal import journal
    from edged.storage.outbox import tables as outbox_tables
    from edged.storage.samples import tables as sample_tables

    code = "import build, sys; print(build.schemas_of(build.Path(sys.argv[1])))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT)], cwd=DEBIAN, capture_output=True, text=True, check=True
    )
    known = {name: tables.FORMAT for name, tables in
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


def built(code: str, *arguments: str | Path) -> str:
    """What this prints that uses the program that builds packages."""
    done = subprocess.run(
        [sys.executable, "-c", f"import build, sys\nfrom pathlib import Path\n{code}", *map(str, arguments)],
        cwd=DEBIAN, capture_output=True, text=True, check=True, env=os.environ | {"SOURCE_DATE_EPOCH": "0"},
    )  # fmt: skip
    return done.stdout


def test_modes_are_those_of_what_things_are(tmp_path: Path) -> None:
    """A folder is one whatever it is called, and of the files those run that are programs or scripts."""
    package = "opt/edged/lib/sympy/physics/control"
    modes = {
        package: 0o755, f"{package}/lti.py": 0o644, f"{package}/conffiles": 0o644,
        "opt/edged/bin/edged": 0o755,
        "DEBIAN/control": 0o644, "DEBIAN/conffiles": 0o644, "DEBIAN/postinst": 0o755,
    }  # fmt: skip
    for name in modes:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if name != package:
            (tmp_path / name).touch(0o600)
    built("build.settle(Path(sys.argv[1]))", tmp_path)
    assert {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in modes} == modes


# ---- install.sh, its functions alone: root's directories are not those of this machine ----------------

SYSTEMCTL = """
managed() { true; }
systemctl() {
    echo "systemctl $*" >>"$UNITS/said"
    case "$*" in
    list-units*active,activating,reloading*) echo "edged.service loaded active running" ;;
    list-units*) exit 9 ;;
    esac
}
"""


def installing(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """The functions of install.sh with folders of our own, then this code."""
    functions = INSTALL.read_text().split("while [ $# -gt 0 ]; do")[0].replace("$0", str(INSTALL))
    places = "\n".join(f"{name}={folder / name.lower()}" for name in ("PREFIX", "UNITS", "COMMAND"))
    (folder / "units").mkdir(exist_ok=True)
    return subprocess.run(
        ["sh", "-c", f"{functions}\n{places}\n{SYSTEMCTL}\nRUNNING=\n{code}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("failing", ["install_packages", "install_user", "install_units"])
def test_what_ran_goes_on_when_an_update_fails(tmp_path: Path, failing: str) -> None:
    passing = "\n".join(
        f"{name}() {{ :; }}" for name in ("install_packages", "install_user", "install_units")
    )
    done = installing(tmp_path, f"{passing}\n{failing}() {{ false; }}\ndo_install")
    assert done.returncode == 1
    assert "starting again what ran" in done.stderr
    said = (tmp_path / "units" / "said").read_text().splitlines()
    assert said[1:] == ["systemctl stop edged.service", "systemctl start edged.service"]


def test_an_environment_of_a_python_that_is_gone_is_made_anew(tmp_path: Path) -> None:
    programs = tmp_path / "prefix" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to("/usr/bin/python3.1")
    made = installing(tmp_path, "PYTHON=echo\nln() { :; }\ninstall_packages")
    assert made.returncode == 127, "it is to be made by what PYTHON names, and the rest is missing then"
    assert not (tmp_path / "prefix").exists()


@pytest.mark.parametrize("script", [INSTALL, DEBIAN / "postrm"], ids=lambda path: path.name)
def test_what_is_removed_leaves_no_link_to_an_instance(tmp_path: Path, script: Path) -> None:
    """The line alone: the scripts take away more, and from this machine."""
    units = tmp_path / "etc/systemd/system"
    links = units / "multi-user.target.wants"
    links.mkdir(parents=True)
    for name in ("edged@press-8.service", "another.service"):
        (links / name).symlink_to("/etc/systemd/system/gone.service")
    line = next(line for line in script.read_text().splitlines() if "*.wants/" in line)
    subprocess.run(["sh", "-c", line], check=True, env={"DPKG_ROOT": str(tmp_path), "UNITS": str(units)})
    assert [path.name for path in links.iterdir()] == ["another.service"]


def test_the_template_is_on_the_state_directory_of_the_service(tmp_path: Path) -> None:
    """`edged status /etc/edged/edged.yaml` by hand looks where the daemon does."""
    text = built("print(build.template(), end='')")
    assert installing(tmp_path, "template").stdout == text
    path = tmp_path / "edged.yaml"
    path.write_text(text)
    unit = (ROOT / "systemd" / "edged.service").read_text()
    assert f"Environment=EDGED_STORAGE__DIR={load(path, {}).storage.dir}\n" in unit


def test_packages_hold_what_a_configuration_may_ask_for() -> None:
    """The same extras by each way; others are for offline work, the demo, and environments of their own."""
    told = built("print(build.EXTRAS)").strip()
    extras = set(told.split(","))
    assert f'"${{WHEEL}}[{told}]"' in INSTALL.read_text()
    text = (ROOT / "pyproject.toml").read_text()
    section = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    offered = set(re.findall(r"(?m)^(\w+) = \[", section))
    assert offered - extras == {"demo", "parquet"}
    pinned = (ROOT / "deploy" / "constraints-all.txt").read_text()
    assert set(pinned.partition("extras ")[2].partition(", with")[0].split(", ")) == extras
