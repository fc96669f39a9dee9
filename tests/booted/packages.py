"""Two packages of edged: this one, and a newer one that keeps its state in another form."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.booted.machine import call

PROJECT = Path(__file__).resolve().parents[2]
PYTHON = "3.11"  # of the Debian that is booted
NEWER = "99.0.0"
SOURCES = ("edged", "pyproject.toml", "README.md", "LICENSE")
TABLES = "edged/storage/samples/tables.py"
# The newer version brings databases of this one into its own format, which this one does not read.
MIGRATION = """
FORMAT = 2


def _brought_up_to_date(check):
    def checked(db, path, *args):
        if db.execute("PRAGMA user_version").fetchone()[0] == 1:
            db.executescript(f"PRAGMA user_version = 2; PRAGMA application_id = {0x65640002}")
        check(db, path, *args)

    return checked


from edged.storage.files import database

database.create_tables = _brought_up_to_date(database.create_tables)
"""


def packages(wheel: Path, folder: Path) -> tuple[Path, Path]:
    """Build both for this machine, into `folder`: this one and the newer one."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return build(wheel, folder), build(newer_wheel(folder), folder)


def checkout(wheel: Path, folder: Path) -> None:
    """What a board without packages and without a network is given: a release's files and all wheels."""
    for name in ("systemd", "configs", "deploy"):
        shutil.copytree(PROJECT / name, folder / "checkout" / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-qq"]
    target = ["--only-binary=:all:", "--python-version", PYTHON]
    extras = f"{wheel}[codecs,sparkplug,signing,web,websockets]"
    subprocess.run([*pip, *target, "-d", str(folder / "wheels"), extras], check=True)


def build(wheel: Path, folder: Path) -> Path:
    """One package."""
    architecture = call("dpkg", "--print-architecture").strip()
    script = str(PROJECT / "deploy/debian/build.py")
    before = set(folder.glob("*.deb"))
    tools = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    subprocess.run(
        [sys.executable, script, str(wheel), "-o", str(folder),
         "--arch", architecture, "--compression", "none"],
        check=True, stdout=subprocess.DEVNULL, env=os.environ | {"PATH": tools},
    )  # fmt: skip
    (made,) = set(folder.glob("*.deb")) - before
    return made


def newer_wheel(folder: Path) -> Path:
    """A wheel of the working tree with a later version and a later schema."""
    with tempfile.TemporaryDirectory(prefix="edged-newer-") as name:
        copy = Path(name)
        for source in SOURCES:
            path = PROJECT / source
            if path.is_dir():
                shutil.copytree(path, copy / source, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(path, copy)
        version = copy / "edged/__init__.py"
        version.write_text(re.sub(r'(__version__ = )".*"', rf'\1"{NEWER}"', version.read_text()))
        tables = copy / TABLES
        tables.write_text(tables.read_text() + MIGRATION)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps"]
        subprocess.run([*pip, "-w", str(folder), str(copy)], check=True)
    return next(folder.glob(f"edged-{NEWER}-*.whl"))
