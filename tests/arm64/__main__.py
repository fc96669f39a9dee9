"""`python -m tests.arm64 WHEELS CACHE [board] [parity]`: a device on emulated ARM64, and this machine.

A system is installed under CACHE. `board`: on a fresh copy of it the commands of docs/boards.md are run as
they stand: edged from its wheel with plain pip, `edged doctor`, a first start and a bundle that are built
there, a model that `edged demo` trains and swaps. `parity`: the native engine's losses are recorded here; the
same tests run there, on bundles that are built there, and compare with those.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from edged.errors import EdgedError
from tests.arm64 import board
from tests.arm64.root import Root, check_machine, emulation

PROJECT = Path(__file__).resolve().parents[2]
# The demo lives by the clock, which emulation cannot keep up with; the newest runtime is the one installed.
SELECTED = {
    "tests/stock": "newest and not demo",
    # A NaN among tokens becomes token 0 there: Cast saturates, where x86-64 gives the lowest integer.
    "tests/engines/test_contract.py": (
        "not native and not (nan and (transformer or embedding_bag or int64_tokens))"
    ),
    "tests/engines/test_misuse.py": "not native",
}
PLUGIN = ["-p", "tests.arm64.native_losses", "-q", "-o", "timeout=900"]


def say(what: str) -> None:
    """One line with the time."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {what}\n")


def record(folder: Path) -> None:
    """Run the tests that ask for losses of the native engine here, and keep those."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pytest", *PLUGIN, "tests/stock", "-k", "newest and losses"]
    subprocess.run(command, cwd=PROJECT, env=os.environ | {"EDGED_TEST_RECORD": str(folder)}, check=True)


def install(root: Root, wheel: Path) -> None:
    """The wheel with all that it and the tests ask for; only the wheel anew when the rest is there."""
    pip = [
        "/opt/edged/bin/python",
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "-q",
        "--only-binary=:all:",
    ]
    certificates = {"PIP_CERT": "/etc/ssl/certs/ca-certificates.crt"}
    if not (root.path / "opt/edged/bin/hypothesis").exists():
        root.run("python3", "-m", "venv", "--clear", "/opt/edged")
    shutil.copy(wheel, root.shared)
    root.run(
        *pip,
        f"/mnt/{wheel.name}[signing]",
        "pytest",
        "pytest-timeout",
        "pytest-xdist",
        "hypothesis",
        variables=certificates,
    )
    root.run(*pip, "--no-deps", "--force-reinstall", f"/mnt/{wheel.name}")
    root.run("sh", "-c", "/opt/edged/bin/python -m pip freeze >/opt/edged/requirements.txt")


def replay(root: Root) -> None:
    """Run the selected tests inside."""
    shutil.rmtree(root.shared / "tests", ignore_errors=True)
    shutil.copytree(PROJECT / "tests", root.shared / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "pyproject.toml", root.shared)
    variables = {
        "EDGED_TEST_REPLAY": "/mnt/losses",
        "EDGED_STOCK_NEWEST": "/opt/edged",
        "EDGED_TEST_PATIENCE": "6",
    }
    pytest = ["/opt/edged/bin/python", "-m", "pytest", *PLUGIN, "--durations=5"]
    for path, words in SELECTED.items():
        root.run(*pytest, path, "-k", words, variables=variables)


def first_hour(root: Root, wheel: Path) -> None:
    """The commands of docs/boards.md on a board that has nothing of edged yet."""
    board.prepare(root.shared, wheel)
    say("the commands of docs/boards.md on a fresh board")
    for line in board.check(root.fresh(root.path.with_name("board"))):
        say(f"  {line}")


def parity(root: Root, wheel: Path) -> None:
    """The tests of a device, here and there."""
    say("recording on this machine")
    record(root.shared / "losses")
    say("installing edged and pytest from aarch64 wheels")
    install(root, wheel)
    say("testing on ARM64")
    replay(root)


def main(wheels: Path, cache: Path, parts: Sequence[str]) -> None:
    """All of it, or the parts that are named."""
    check_machine()
    root = Root(cache / "root", cache / "shared")
    root.shared.mkdir(parents=True, exist_ok=True)
    wheel = next(wheels.glob("edged-*.whl"))
    with emulation():
        say("installing Debian for ARM64")
        root.make()
        for name, part in (("board", first_hour), ("parity", parity)):
            if not parts or name in parts:
                part(root, wheel)
    say("done")


if __name__ == "__main__":
    # What was changed is undone then too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("test-arm64: terminated"))
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
    except (EdgedError, subprocess.CalledProcessError) as problem:
        sys.exit(f"test-arm64: {problem}")
