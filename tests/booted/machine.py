"""A Debian 12 that systemd-nspawn boots: what runs in it, and how it is looked into."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from edged.errors import UnavailableError

if TYPE_CHECKING:
    from typing_extensions import Self

SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = (
    "systemd,systemd-sysv,dbus,python3,python3-venv,mosquitto,mosquitto-clients,init-system-helpers,procps,"
    "apparmor"
)
PROGRAMS = ("debootstrap", "systemd-nspawn", "nsenter", "script", "dpkg-deb")
BOOT_SECONDS = 120.0
PATH = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def check_machine() -> None:
    """Say what is missing here, all at once.

    Raises
    ------
    UnavailableError
        Without root, or without one of the programs.
    """
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if os.geteuid() != 0:
        raise UnavailableError("booting a system in a container needs root", remedy="sudo")
    if missing:
        remedy = "apt-get install debootstrap systemd-container bsdutils dpkg"
        raise UnavailableError(f"missing: {', '.join(missing)}", remedy=remedy)


def install(root: Path) -> None:
    """Install the system into the folder `root` unless it is there with these packages; two minutes."""
    packages = root.with_name(root.name + ".packages")
    if root.exists() and packages.exists() and packages.read_text() == PACKAGES:
        return
    shutil.rmtree(root, ignore_errors=True)
    unfinished = root.with_name(root.name + ".partial")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    mirror = os.environ.get("DEBIAN_MIRROR", MIRROR)
    call("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(unfinished), mirror)
    unfinished.rename(root)
    packages.write_text(PACKAGES)


def call(*command: str, seconds: float = 900) -> str:
    """Output of a command; UnavailableError with its last words when it fails."""
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, errors="replace", timeout=seconds
    )
    if done.returncode:
        last = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-15:])
        raise UnavailableError(f"exit code {done.returncode}: {last}", where=" ".join(command[:3]))
    return done.stdout


def until(condition: Callable[[], object], seconds: float, what: str) -> float:
    """Wait for what tells nobody when it changes; how many seconds that took.

    Raises
    ------
    AssertionError
        When it does not happen in time.
    """
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.2)
    return time.monotonic() - began


class MemoryGroup:
    """All memory of the container in one group of the first version of control groups.

    Where the memory controller belongs to that version, no service in the container can be given bounds by
    systemd. A board whose memory is short is the same to the kernel: it looks at out-of-memory scores.
    """

    def __init__(self) -> None:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = next((line.split(":", 2)[2] for line in lines if line.split(":")[1] == "memory"), None)
        mount = Path("/sys/fs/cgroup/memory")
        self.folder = None if own is None else mount / own.lstrip("/") / f"edged-booted-{os.getpid()}"
        if self.folder is not None:
            self.folder.mkdir()

    def held(self) -> int:
        """Bytes that cannot be reclaimed."""
        assert self.folder is not None
        lines = (self.folder / "memory.stat").read_text().splitlines()
        values = {name: int(value) for name, value in (line.split() for line in lines)}
        return values["total_rss"] + values.get("total_shmem", 0)

    def limit(self, limit: int | None) -> None:
        """Bound what the container may hold; None for no bound."""
        assert self.folder is not None
        (self.folder / "memory.limit_in_bytes").write_text("-1" if limit is None else str(limit))

    def remove(self) -> None:
        """When nothing is left in it."""
        if self.folder is not None:
            folder = self.folder
            until(lambda: not (folder / "tasks").read_text(), 30, "the container's processes are gone")
            folder.rmdir()


class Container:
    """A copy of the system in `root`, booted; gone when the block ends.

    Parameters
    ----------
    root
        As `install` has made it; stays as it is.
    folder
        Where the copy and the console's log are made.
    shared
        Seen inside as `/mnt`.
    """

    def __init__(self, root: Path, folder: Path, shared: Path) -> None:
        self._root, self._folder, self._shared = root, folder, shared
        self._system = folder / "system"
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._leader = 0
        self.memory = MemoryGroup()

    def __enter__(self) -> Self:
        shutil.rmtree(self._system, ignore_errors=True)
        call("cp", "-a", "--reflink=auto", str(self._root), str(self._system))
        (self._system / "etc/machine-id").write_text("")
        self._start()
        try:
            until(self._up, BOOT_SECONDS, "the system is up")
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._nspawn is not None:
            self._stop(self._nspawn)
        self.memory.remove()
        shutil.rmtree(self._system)

    def _start(self) -> None:
        # With a manager of its own, nspawn asks it for a control group.
        unmanaged = [] if Path("/run/systemd/system").exists() else ["--register=no", "--keep-unit"]
        nspawn = [
            "systemd-nspawn", "--quiet", "--boot", f"--directory={self._system}", "--private-network",
            f"--machine=edged-booted-{os.getpid()}", f"--bind-ro={self._shared}:/mnt", *unmanaged,
        ]  # fmt: skip
        group = self.memory.folder
        joining = "" if group is None else f"echo $$ >{group}/tasks; "
        # It wants a terminal; script has one.
        line = f"{joining}exec script -qfec '{' '.join(nspawn)}' {self._folder}/console.log"
        self._nspawn = subprocess.Popen(
            ["sh", "-c", line], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env=os.environ | {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
        )  # fmt: skip

    def _up(self) -> bool:
        assert self._nspawn is not None
        assert self._nspawn.poll() is None, f"nspawn has ended: {self._folder}/console.log"
        if not self._leader:
            below = (pid for pid in descendants(self._nspawn.pid) if name_of(pid) == "systemd")
            self._leader = next(below, 0)
        return bool(self._leader) and self.attempt("systemctl", "is-system-running")[1].strip() == "running"

    def _stop(self, nspawn: subprocess.Popen[bytes]) -> None:
        if self._leader and nspawn.poll() is None:
            self.attempt("systemctl", "poweroff")
        try:
            nspawn.wait(30)
        except subprocess.TimeoutExpired:
            for pid in (*descendants(nspawn.pid), nspawn.pid):
                os.kill(pid, 9)
            nspawn.wait(10)

    def command(self, *command: str) -> list[str]:
        """How a command is started from here so that it runs inside."""
        assert self._leader, "not booted yet"
        spaces = ["-m", "-u", "-i", "-n", "-p", "-C"]
        inside = ["/usr/bin/env", "-i", f"PATH={PATH}", "HOME=/root", "DEBIAN_FRONTEND=noninteractive"]
        return ["nsenter", "-t", str(self._leader), *spaces, *inside, *command]

    def attempt(self, *command: str, seconds: float = 300) -> tuple[int, str]:
        """Exit code and all output of a command inside."""
        done = subprocess.run(
            self.command(*command), check=False, text=True, errors="replace", timeout=seconds,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.returncode, done.stdout

    def run(self, *command: str) -> str:
        """Output of a command inside that must succeed."""
        code, output = self.attempt(*command)
        assert code == 0, f"{' '.join(command)}: exit code {code}\n{output}"
        return output

    def path(self, inside: str) -> Path:
        """A file of the running system, seen from here."""
        return Path(f"/proc/{self._leader}/root{inside}")

    def write(self, inside: str, text: str, mode: int = 0o644) -> None:
        """Write a file inside, with its folder."""
        path = self.path(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Properties of a unit."""
        lines = self.run("systemctl", "show", unit, *(f"-p{name}" for name in properties)).splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def journal(self, *matches: str) -> str:
        """The messages in the journal that match."""
        return self.run("journalctl", "--no-pager", "-o", "cat", *matches)


def descendants(pid: int) -> list[int]:
    """All processes below one, the lowest first."""
    try:
        text = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:
        return []
    children = [int(word) for word in text.split()]
    return [*(below for child in children for below in descendants(child)), *children]


def name_of(pid: int) -> str:
    """Name of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
