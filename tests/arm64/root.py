"""An ARM64 Debian in a folder, run by qemu's user emulation."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edged.errors import UnavailableError

SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = "python3,python3-venv,ca-certificates,mosquitto"
KEPT = "opt"  # what tests install: a fresh board has nothing there
BINFMT = Path("/proc/sys/fs/binfmt_misc")
# An ELF file for AArch64: class, byte order, version and machine of its header; see elf(5).
MAGIC = r"\x7fELF\x02\x01\x01" + r"\x00" * 9 + r"\x02\x00\xb7\x00"
MASK = r"\xff" * 7 + r"\x00" + r"\xff" * 8 + r"\xfe\xff\xff\xff"
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"

# In namespaces of its own: mounts and processes are gone when it ends, however that happens. The shell stays,
# because a crash of the namespace's first process would hang.
ENTER = """
mkdir -p "$0/mnt"
mount -t proc proc "$0/proc"
mount --rbind /dev "$0/dev"
mount --bind "$1" "$0/mnt"
root=$0; shift
[ -z "$ALONE" ] || ip link set lo up
chroot "$root" "$@"
"""
NAMESPACES = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
VARIABLES = {"PATH": "/opt/edged/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}


@dataclass(frozen=True)
class Root:
    """The system in folder `path`; `shared` is seen as `/mnt` inside."""

    path: Path
    shared: Path

    def make(self) -> None:
        """Install the system unless it is there; two to four minutes."""
        if self.path.exists():
            return
        unfinished = self.path.with_name(self.path.name + ".partial")
        shutil.rmtree(unfinished, ignore_errors=True)
        mirror = os.environ.get("DEBIAN_MIRROR", MIRROR)
        options = ["--arch=arm64", "--foreign", "--variant=minbase", f"--include={PACKAGES}"]
        call("debootstrap", *options, SUITE, str(unfinished), mirror)
        Root(unfinished, self.shared).run("/debootstrap/debootstrap", "--second-stage", quiet=True)
        self._trust(unfinished)
        self._describe_processors(unfinished)
        unfinished.rename(self.path)

    @staticmethod
    def _trust(path: Path) -> None:
        """Downloads go the same way as on this machine: name servers, and who is trusted."""
        shutil.copy("/etc/resolv.conf", path / "etc/resolv.conf")
        # An installer would write this one.
        (path / "etc/hosts").write_text("127.0.0.1 localhost\n", encoding="ascii")
        certificates = os.environ.get("PIP_CERT") or ssl.get_default_verify_paths().cafile
        if certificates is not None:
            shutil.copy(certificates, path / CERTIFICATES)

    @staticmethod
    def _describe_processors(path: Path) -> None:
        """All that onnxruntime looks for; it dies of the true `/sys`, which describes this machine's."""
        folder = path / "sys/devices/system/cpu"
        folder.mkdir(parents=True)
        for name in ("possible", "present"):
            (folder / name).write_text(f"0-{(os.cpu_count() or 1) - 1}\n")

    def fresh(self, path: Path) -> Root:
        """A copy in the folder `path`, in place of what was there, without what tests have installed."""
        shutil.rmtree(path, ignore_errors=True)
        call("cp", "-a", str(self.path), str(path))
        shutil.rmtree(path / KEPT)
        (path / KEPT).mkdir()
        return Root(path, self.shared)

    def run(
        self,
        *command: str,
        quiet: bool = False,
        alone: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Run a command inside, in `/mnt`; raises UnavailableError when it fails.

        `alone`: its network has the loopback interface and no other.
        """
        proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        inside = [f"{name}={value}" for name, value in (VARIABLES | proxies | dict(variables or {})).items()]
        namespace = [
            *NAMESPACES,
            *(["--net"] if alone else []),
            "env",
            f"ALONE={'yes' if alone else ''}",
            "sh",
            "-e",
            "-c",
            ENTER,
            str(self.path.resolve()),
            str(self.shared.resolve()),
        ]
        call(*namespace, "/usr/bin/env", "-C", "/mnt", "-i", *inside, *command, quiet=quiet)


def call(*command: str, quiet: bool = True) -> None:
    """Run a command; its output is shown when it fails, and meanwhile unless `quiet`."""
    done = subprocess.run(
        command, check=False, text=True, errors="replace", stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if quiet else None, stderr=subprocess.STDOUT if quiet else None,
    )  # fmt: skip
    if done.returncode:
        last = (done.stdout or "").strip().splitlines()[-15:]
        raise UnavailableError(
            "\n".join([f"failed with exit code {done.returncode}", *last]),
            where=f"{command[0]} ... {command[-1]}",
        )


def check_machine() -> None:
    """Say what is missing here, all at once.

    Raises
    ------
    UnavailableError
        Without root, or without one of the programs.
    """
    programs = ("debootstrap", "qemu-aarch64-static", "unshare", "chroot")
    missing = [program for program in programs if shutil.which(program) is None]
    if os.geteuid() != 0:
        raise UnavailableError("installing and entering a system needs root", remedy="sudo")
    if missing:
        remedy = "apt-get install debootstrap qemu-user-static util-linux"
        raise UnavailableError(f"missing: {', '.join(missing)}", remedy=remedy)


@contextmanager
def emulation() -> Iterator[None]:
    """The kernel hands ARM64 programs to qemu; what was changed for that is undone."""
    mounted = not (BINFMT / "register").exists()
    try:
        if mounted:
            call("mount", "-t", "binfmt_misc", "binfmt_misc", str(BINFMT))
        mine = not _registered()
        if mine:
            # F: opened now, so that it is found after the change of root; P: argv[0] is kept.
            qemu = shutil.which("qemu-aarch64-static")
            (BINFMT / "register").write_text(f":edged-aarch64:M::{MAGIC}:{MASK}:{qemu}:F")
    except (OSError, UnavailableError) as problem:
        raise UnavailableError(
            f"the kernel takes no interpreter for ARM64 programs: {problem}", where=str(BINFMT),
            remedy="load the module binfmt_misc; in a container, allow mounting it",
        ) from problem  # fmt: skip
    try:
        yield
    finally:
        if mine:
            (BINFMT / "edged-aarch64").write_text("-1")
        if mounted:
            call("umount", str(BINFMT))


def _registered() -> bool:
    """Whether another interpreter for ARM64 is there that a changed root does not hide."""
    return any("enabled" in text and "flags:" in text and "F" in text.partition("flags:")[2].split()[0]
               for text in (path.read_text() for path in BINFMT.glob("*aarch64*")))  # fmt: skip
