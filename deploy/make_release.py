"""Build what is published from a commit: an sdist and a wheel, the same bytes wherever they are built.

`python deploy/make_release.py build OUT` builds the commit that is checked out twice, in different folders,
and fails when the two differ; `python deploy/make_release.py check OUT VERSION...` installs the wheel in a
clean environment of each of these versions of CPython, such as `3.12`, and runs `edged demo` there.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BACKEND = "setuptools==82.0.1"  # its version is written into the wheel
FILE_MODE, DIRECTORY_MODE = 0o644, 0o755
DEMO_SECONDS = 20


def build(out: Path) -> None:
    """Build twice, compare, and leave sdist, wheel and `SHA256SUMS` in the new directory `out`."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory(prefix="another-") as second:
        made, again = (_build(Path(folder)) for folder in (first, second))
        if made != again:
            differ = [name for name in made if made[name] != again.get(name)]
            sys.exit(f"built twice, these differ: {', '.join(differ) or 'their names'}")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(Path(first) / "dist", out)
    sums = "".join(f"{digest}  {name}\n" for name, digest in made.items())
    (out / "SHA256SUMS").write_text(sums, encoding="utf-8")
    print(sums, end="")


def _build(folder: Path) -> dict[str, str]:
    """Build in `folder`; the SHA-256 of each file by name."""
    source, out = folder / "edged", folder / "dist"
    source.mkdir()
    archive = _run(["git", "-C", str(ROOT), "archive", "HEAD"])
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(source, filter=_plain)  # noqa: S202  of git, with plain modes
    epoch = _run(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]).decode().strip()
    (folder / "constraints.txt").write_text(f"{BACKEND}\n", encoding="utf-8")
    given = {"SOURCE_DATE_EPOCH": epoch, "PIP_CONSTRAINT": str(folder / "constraints.txt")}
    _run([sys.executable, "-m", "build", "--outdir", str(out), str(source)], **given)
    for sdist in out.glob("*.tar.gz"):
        _normalise(sdist, int(epoch))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.iterdir())}


def _plain(member: tarfile.TarInfo, _: str = "", time: int | None = None) -> tarfile.TarInfo:
    """A member without what differs between machines: owners, and modes beside that of the owner."""
    mode = DIRECTORY_MODE if member.isdir() or member.mode & 0o100 else FILE_MODE
    told = member.replace(mode=mode, uid=0, gid=0, uname="", gname="", deep=False)
    return told if time is None else told.replace(mtime=time, deep=False)


def _normalise(sdist: Path, epoch: int) -> None:
    """Write an sdist anew: sorted, with one time and no owners."""
    plain = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            told = _plain(member, time=epoch)
            told.pax_headers = {}
            new.addfile(told, old.extractfile(member) if member.isfile() else None)
    with sdist.open("wb") as file, gzip.GzipFile("", "wb", 9, file, epoch) as packed:
        packed.write(plain.getvalue())


def check(out: Path, versions: list[str]) -> None:
    """Check the descriptions, and install and try the wheel with each version of CPython."""
    files = sorted(str(path) for path in out.iterdir() if path.name != "SHA256SUMS")
    _run([sys.executable, "-m", "twine", "check", "--strict", *files])
    wheel = next(out.glob("*.whl"))
    version = wheel.name.split("-")[1]
    for wanted in versions:
        python = shutil.which(f"python{wanted}")
        if python is None:
            sys.exit(f"there is no python{wanted}: install it, or name others with PYTHONS=")
        with tempfile.TemporaryDirectory() as folder:
            _try(python, Path(folder), wheel, version)
        print(f"{wheel.name}: installs and learns with CPython {wanted}", flush=True)


def _try(python: str, folder: Path, wheel: Path, version: str) -> None:
    """Install the wheel in a new environment, and run it there."""
    bin_ = folder / "env" / "bin"
    _run([python, "-m", "venv", str(folder / "env")])
    _run([str(bin_ / "pip"), "install", "-q", f"{wheel.resolve()}[demo]"])
    told = _run([str(bin_ / "edged"), "--version"]).decode().split()
    if told != ["edged", version]:
        sys.exit(f"{wheel.name} says that it is {' '.join(told)}")
    _run([str(bin_ / "python"), "-c", "from edged import api"])
    shown = _run([str(bin_ / "edged"), "demo", "--seconds", str(DEMO_SECONDS), "--json"], cwd=folder)
    if not json.loads(shown)["samples"]:
        sys.exit(f"the demo has predicted nothing with {python}")


def _run(command: list[str], cwd: Path | None = None, **environment: str) -> bytes:
    """Run a command; its output. Ends with its messages where it fails."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, check=False, cwd=cwd, env=known | environment)
    if done.returncode:
        sys.exit(f"{' '.join(command[:5])} ... failed:\n{(done.stderr or done.stdout).decode()}")
    return done.stdout


def main() -> None:
    """Build, or check what was built."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("action", choices=["build", "check"])
    arguments.add_argument("out", type=Path)
    arguments.add_argument("versions", nargs="*")
    given = arguments.parse_args()
    build(given.out) if given.action == "build" else check(given.out, given.versions)


if __name__ == "__main__":
    main()
