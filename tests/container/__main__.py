"""`python -m tests.container CACHE`: build and run deploy/container with debootstrap, chroot and namespaces.

The image is made by executing the Dockerfile; broker and daemon are run as compose.yaml has them, in a
network of their own, until a model was trained and swapped and the image's health check says all is well.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from edged.errors import EdgedError, UnavailableError
from tests.arm64.root import MIRROR, call
from tests.container.image import NAMESPACES, Builder, Image

PROJECT = Path(__file__).resolve().parents[2]
FILES = PROJECT / "deploy" / "container"
HERE = Path(__file__).with_name("network.sh")
SAMPLES = 3000


def say(what: str) -> None:
    """One line with the time."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {what}\n")


def lint() -> None:
    """Hadolint, where it is installed (`make test-container` installs it)."""
    program = shutil.which("hadolint")
    if program is None:
        say("  hadolint is not installed: not linted")
        return
    call(program, str(FILES / "Dockerfile"), quiet=False)
    say("  hadolint has nothing to say")


def base(cache: Path) -> Path:
    """What stands for the image debian:12-slim; made once."""
    root = cache / "debian"
    if not root.exists():
        unfinished = cache / "debian.partial"
        shutil.rmtree(unfinished, ignore_errors=True)
        mirror = os.environ.get("DEBIAN_MIRROR", MIRROR)
        call("debootstrap", "--variant=minbase", "bookworm", str(unfinished), mirror)
        unfinished.rename(root)
    return root


def site(folder: Path) -> None:
    """The files of deploy/, and the steps of README.md up to `docker compose`, in `folder`/container."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("container", "mosquitto"):
        shutil.copytree(PROJECT / "deploy" / name, folder / name)
    page = (FILES / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert found is not None
    steps, _, _ = found[1].partition("docker compose")
    subprocess.run(["bash", "-eu", "-c", steps], cwd=folder / "container", check=True, stdout=sys.stderr)


def mounts(service: dict[str, Any], folder: Path) -> list[str]:
    """What compose.yaml mounts into a service: `source target ro|rw` each; named volumes are folders."""
    told = []
    for line in service["volumes"]:
        source, target, *mode = line.split(":")
        path = folder / source if source.startswith(".") else folder / "volumes" / source
        told.append(f"{path.resolve()} {target} {mode[0] if mode else 'rw'}")
    return told


def check(service: dict[str, Any]) -> None:
    """What network.sh takes for granted of a service."""
    wanted = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}
    wrong = [key for key, value in wanted.items() if service.get(key) != value]
    if wrong:
        raise UnavailableError(f"not as it is run here: {', '.join(wrong)}", where="compose.yaml")


def run(image: Image, folder: Path) -> None:
    """Broker and daemon as in compose.yaml; raises UnavailableError unless a model is trained and swapped."""
    services = yaml.safe_load((FILES / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for service in services.values():
        check(service)
    container = folder / "container"
    for volume in image.volumes:
        # A named volume begins with what the image has in its place, its owner included.
        call("cp", "-a", str(image.root / volume.lstrip("/")), str(container / "volumes" / "state"))
    (container / "mounts.broker").write_text("\n".join(mounts(services["broker"], container)) + "\n")
    (container / "mounts.edged").write_text("\n".join(mounts(services["edged"], container)) + "\n")
    variables = {
        "ROOT": str(image.root), "SITE": str(container), "UID_GID": image.user, "FOLDER": image.folder,
        "BROKER_UID_GID": services["broker"]["user"], "BROKER": " ".join(services["broker"]["command"]),
        "INSIDE": " ".join(f"{name}={value}" for name, value in image.env.items()),
        "COMMAND": " ".join(image.entry + image.command), "HEALTH": " ".join(image.health),
        "SAMPLES": str(SAMPLES),
    }  # fmt: skip
    subprocess.run(
        [*NAMESPACES, "--net", "--mount-proc", "bash", str(HERE)], env=os.environ | variables, check=True
    )


def main(cache: Path) -> None:
    """All of it."""
    if os.geteuid() != 0:
        raise UnavailableError("installing and entering a system needs root", remedy="sudo")
    cache.mkdir(parents=True, exist_ok=True)
    say("linting")
    lint()
    say("a Debian to build on")
    debian = base(cache)
    say("executing the Dockerfile")
    image = Builder(debian, PROJECT, cache).build(FILES / "Dockerfile")
    size = sum(p.lstat().st_size for p in (image.root / "opt/edged").rglob("*") if not p.is_symlink())
    say(f"  /opt/edged has {size / 1e6:.0f} MB")
    say("running it with its broker, as compose.yaml has it")
    site(cache / "site")
    (cache / "site/container/volumes/broker").mkdir(parents=True)
    shutil.chown(cache / "site/container/volumes/broker", 1883, 1883)
    run(image, cache / "site")
    say("done")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("test-container: terminated"))
    try:
        main(Path(sys.argv[1]).resolve())
    except (EdgedError, subprocess.CalledProcessError) as problem:
        sys.exit(f"test-container: {problem}")
