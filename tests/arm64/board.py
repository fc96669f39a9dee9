"""A fresh board: the commands of docs/boards.md, as they stand there, and what they leave on it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from edged.errors import UnavailableError

if TYPE_CHECKING:
    from tests.arm64.root import Root

PROJECT = Path(__file__).resolve().parents[2]
PAGE = PROJECT / "docs" / "boards.md"
LIMIT = 235e6  # bytes of packages
COMPILERS = ("cc", "gcc", "c++", "g++", "clang", "rustc", "cargo", "cmake")
HEAVY = ("torch", "scipy", "pandas", "onnxruntime_training", "onnxruntime_training_cpu")
# The packages of a device, without those that a new environment brings.
BROUGHT = ("pip*", "setuptools*", "pkg_resources", "_distutils_hack")
MEASURE = rf"""
set -e
site=$(echo /opt/edged/lib/python3*/site-packages)
ls "$site" | sed -n 's/-[0-9].*\.dist-info$//p' >/mnt/installed
du -sb {" ".join(f"--exclude='{name}'" for name in BROUGHT)} "$site" | cut -f1 >/mnt/size
"""


def blocks(where: str) -> str:
    """The shell commands of the page that are for `where`: `install` or `first run`."""
    found = re.findall(
        rf"^<!-- {where} -->\n```sh\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert found, f"docs/boards.md has no commands for: {where}"
    return "\n".join(found)


def prepare(folder: Path, wheel: Path) -> None:
    """What the page has on the board at first: the wheel and the configuration."""
    for left in ("plant", "state", "plant.onnx"):
        path = folder / left
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    shutil.copy(wheel, folder)
    yaml = re.search(r"^```yaml\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert yaml is not None
    (folder / "pump.yaml").write_text(yaml[1], "utf-8")


def check(root: Root) -> list[str]:
    """Run the commands on a fresh board; what came of it, a line each.

    Raises
    ------
    UnavailableError
        When a command fails, or left what it should not.
    """
    for compiler in COMPILERS:
        if any((root.path / folder / compiler).exists() for folder in ("usr/bin", "usr/local/bin")):
            raise UnavailableError(f"{compiler} is there: this board proves nothing", where=str(root.path))
    certificates = {"PIP_CERT": "/etc/ssl/certs/ca-certificates.crt"}
    root.run("sh", "-eux", "-c", blocks("install"), variables=certificates)
    root.run("sh", "-c", MEASURE)
    told = _installed(root)
    # systemd would have started the broker.
    script = f"mosquitto -d -p 1883; {blocks('first run')}"
    kept = f"(set -eux; {script}) >/mnt/first-run.log 2>&1 || {{ cat /mnt/first-run.log; exit 1; }}"
    root.run("sh", "-c", kept, alone=True)
    return told + _first_run((root.shared / "first-run.log").read_text("utf-8", errors="replace"))


def _installed(root: Root) -> list[str]:
    names = (root.shared / "installed").read_text("utf-8").split()
    size = int((root.shared / "size").read_text("utf-8"))
    heavy = sorted({name.lower() for name in names} & set(HEAVY))
    if heavy or size > LIMIT:
        raise UnavailableError(f"{size / 1e6:.0f} MB, {heavy or 'nothing heavy'}", where="installed packages")
    return [f"{len(names)} packages, {size / 1e6:.0f} MB with their bytecode, without pip"]


def _first_run(log: str) -> list[str]:
    dropped = re.search(r"([\d,]+) samples, [\d,]+ predictions, ([\d,]+) dropped", log)
    runs = re.search(r"(\d+) training runs?, (\d+) swaps?", log)
    promoted = re.findall(r"model \d+ promoted", log)
    if dropped is None or runs is None or dropped[2] != "0" or not promoted or not int(runs[1]):
        raise UnavailableError(f"no model was trained and swapped:\n{log[-3000:]}", where="edged demo")
    return [
        line.strip() for line in log.splitlines()
        if re.search(r" dropped|training run|frozen model|engine .*portable|runtime|adapted {2}", line)
    ]  # fmt: skip
