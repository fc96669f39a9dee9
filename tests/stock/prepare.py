"""What a device installs, made on this machine: edged's wheel, and environments with stock onnxruntime.

`python tests/stock/prepare.py wheel FOLDER` builds the wheel into FOLDER;
`python tests/stock/prepare.py oldest|newest FOLDER WHEEL` makes the environment FOLDER. It holds what the
wheel's own metadata asks for, with the oldest or newest stock onnxruntime that edged supports and that has a
wheel for this interpreter in place of the training build. Whatever is there already is used again.
"""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE")
RUNTIME = "onnxruntime"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this working tree; the only one in `folder` afterwards.

    From a copy: setuptools would put modules that are long gone into a wheel from what it left in `build/`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="edged-wheel-") as copy:
        shutil.copytree(ROOT / "edged", Path(copy) / "edged", ignore=shutil.ignore_patterns("__pycache__"))
        for name in SOURCES:
            shutil.copy(ROOT / name, copy)
        _run([*PIP, "wheel", "-q", "--no-deps", "-w", str(folder), copy])
    return next(folder.glob("edged-*.whl"))


def requirements(wheel: Path) -> list[str]:
    """What the wheel asks for, extras left out, with markers."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    return [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]


def with_stock(wanted: list[str], version: str) -> list[str]:
    """The same requirements with exactly this stock onnxruntime as the runtime.

    >>> with_stock(["onnxruntime>=1.19; python_version > '3'", "numpy<3"], "1.19.2")
    ['numpy<3', 'onnxruntime==1.19.2']
    """
    others = [line for line in wanted if not _distribution(line).startswith(RUNTIME)]
    return [*others, f"{RUNTIME}=={version}"]


def floor(wanted: list[str]) -> tuple[int, ...]:
    """The lowest version of stock onnxruntime that edged takes.

    >>> floor(["onnxruntime-training-cpu==1.19.2", "onnxruntime>=1.19; python_version > '3'"])
    (1, 19)
    """
    line = next(line for line in wanted if _distribution(line) == RUNTIME)
    found = re.search(r">=\s*([\d.]+)", line)
    assert found is not None, f"no lowest version in {line!r}"
    return version_of(found[1])


def version_of(text: str) -> tuple[int, ...]:
    """A released version as numbers."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


def _distribution(line: str) -> str:
    found = re.match(r"[\w.-]+", line)
    assert found is not None, line
    return found[0].lower().replace("_", "-")


def choose(which: str, wanted: list[str]) -> str:
    """The oldest or newest supported release that pip finds for this interpreter and machine."""
    told = _run([*PIP, "index", "versions", RUNTIME])
    listed = re.search(r"^Available versions: (.+)$", told, re.MULTILINE)
    assert listed is not None, told
    versions = [v for v in listed[1].split(", ") if version_of(v) >= floor(wanted)]
    return (min if which == "oldest" else max)(versions, key=version_of)


def make(which: str, folder: Path, wheel: Path) -> None:
    """Make or refresh the environment; packages are installed only when the list of them has changed."""
    wanted = requirements(wheel)
    listed, python = folder / "requirements.txt", folder / "bin" / "python"
    lines = "\n".join([f"# {which}", *with_stock(wanted, choose(which, wanted))]) + "\n"
    if not listed.exists() or listed.read_text() != lines:
        shutil.rmtree(folder, ignore_errors=True)
        # pip stays outside: the environment holds what a device has, and is made in a tenth of the time.
        _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(lines)
            file.flush()
            _install(python, "--only-binary=:all:", "-r", file.name)
        listed.write_text(lines)
    _install(python, "--no-deps", "--force-reinstall", str(wheel))


def _install(python: Path, *arguments: str) -> None:
    _run([*PIP, "--python", str(python), "install", "-q", *arguments])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command[:6])} ... failed:\n{done.stderr or done.stdout}")
    return done.stdout


if __name__ == "__main__":
    if sys.argv[1] == "wheel":
        build_wheel(Path(sys.argv[2]))
    else:
        make(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
