"""A Dockerfile executed line by line: FROM copies a Debian root, RUN runs in it, COPY copies files."""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from edged.errors import ConfigError
from tests.arm64.root import CERTIFICATES, call

# In namespaces of its own, so that no mount and no process is left, however it ends.
ENTER = """
mount -t proc proc "$0/proc"
mount --rbind /dev "$0/dev"
chroot "$0" "$@"
"""
NAMESPACES = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
IGNORED = {"EXPOSE", "LABEL", "STOPSIGNAL"}


def instructions(text: str) -> list[tuple[str, str]]:
    """Name and rest of each instruction; comments left out, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    whole = re.sub(r"\\\n", " ", "\n".join(lines))
    parts = (line.strip().partition(" ") for line in whole.splitlines() if line.strip())
    return [(name.upper(), re.sub(r"^ +", "", rest)) for name, _, rest in parts]


@dataclass
class Image:
    """A stage of the build: the root that it is in, and how a container of it would be run."""

    root: Path
    name: str = ""
    env: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    user: str = "0:0"
    folder: str = "/"
    volumes: list[str] = field(default_factory=list)
    entry: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)


class Builder:
    """Executes a Dockerfile in folders below `work`, with copies of the root `base` for every FROM."""

    def __init__(self, base: Path, context: Path, work: Path) -> None:
        self._base, self._context, self._work = base, context, work
        self._stages: list[Image] = []

    def build(self, dockerfile: Path) -> Image:
        """The last stage.

        Raises
        ------
        ConfigError
            When there is an instruction that is not known here.
        UnavailableError
            When a command fails.
        """
        for name, rest in instructions(dockerfile.read_text(encoding="utf-8")):
            if name in IGNORED:
                continue
            act = getattr(self, f"_{name.lower()}", None)
            if act is None:
                raise ConfigError(f"{name} is not known here", where=str(dockerfile))
            act(rest)
        return self._stages[-1]

    @property
    def _now(self) -> Image:
        return self._stages[-1]

    def _from(self, rest: str) -> None:
        image, _, name = rest.partition(" AS ")
        if not image.startswith("debian:12"):
            raise ConfigError(f"{image}: only Debian 12 can be made here", where="FROM")
        root = self._work / f"stage-{len(self._stages)}"
        shutil.rmtree(root, ignore_errors=True)
        call("cp", "-a", str(self._base), str(root))
        self._stages.append(Image(root, name))

    def _run(self, rest: str) -> None:
        run(self._now, ["/bin/sh", "-c", rest])

    def _copy(self, rest: str) -> None:
        words = rest.split()
        stage = re.fullmatch(r"--from=(\S+)", words[0])
        source = self._context
        if stage is not None:
            source = next(image.root for image in self._stages if image.name == stage[1])
            words = words[1:]
        *names, target = words
        there = self._now.root / target.lstrip("/")
        for name in names:
            origin = source / name.lstrip("/")
            if stage is None and not _sent(self._context, name):
                raise ConfigError(f"{name} is not sent: .dockerignore", where="COPY")
            if origin.is_dir():
                ignored = shutil.ignore_patterns("__pycache__") if stage is None else None
                shutil.copytree(origin, there, symlinks=True, dirs_exist_ok=True, ignore=ignored)
            else:
                there.mkdir(parents=True, exist_ok=True)
                shutil.copy(origin, there / origin.name)

    def _env(self, rest: str) -> None:
        self._now.env |= dict(pair.split("=", 1) for pair in rest.split())

    def _user(self, rest: str) -> None:
        self._now.user = rest

    def _workdir(self, rest: str) -> None:
        self._now.folder = rest

    def _volume(self, rest: str) -> None:
        self._now.volumes.append(rest)

    def _entrypoint(self, rest: str) -> None:
        self._now.entry = json.loads(rest)

    def _cmd(self, rest: str) -> None:
        self._now.command = json.loads(rest)

    def _healthcheck(self, rest: str) -> None:
        self._now.health = json.loads(rest.partition("CMD ")[2])


def _sent(context: Path, name: str) -> bool:
    """Whether `.dockerignore`, a list of what is sent, has it."""
    lines = (context / ".dockerignore").read_text(encoding="utf-8").splitlines()
    return "*" in lines and f"!{name.rstrip('/')}" in lines


def run(image: Image, command: list[str]) -> None:
    """A command in the root, as root, with the network of this machine."""
    trust(image.root)
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    variables = {"HOME": "/root", "PIP_CERT": f"/{CERTIFICATES}", "DEBIAN_FRONTEND": "noninteractive"}
    env = [f"{name}={value}" for name, value in (variables | proxies | image.env).items()]
    call(*NAMESPACES, "sh", "-e", "-c", ENTER, str(image.root), "/usr/bin/env", "-i", *env, *command)


def trust(root: Path) -> None:
    """Downloads go the same way as on this machine: name servers, and who is trusted."""
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    certificates = os.environ.get("PIP_CERT") or ssl.get_default_verify_paths().cafile
    if certificates is not None:
        (root / CERTIFICATES).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(certificates, root / CERTIFICATES)
