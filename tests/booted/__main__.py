"""`python -m tests.booted WHEEL CACHE`: from the first installation to the purge, on a booted Debian 12."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from edged.bundles.graph.templates import mlp
from edged.errors import EdgedError
from tests.booted import steps
from tests.booted.machine import Container, check_machine, install
from tests.booted.packages import checkout, packages
from tests.booted.publish import WIDTH
from tests.booted.site import Site
from tests.building import build


def say(what: str) -> None:
    """One line with the time."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {what}\n")
    sys.stdout.flush()


def main(wheel: Path, cache: Path) -> None:
    """All of it."""
    check_machine()
    root, shared = cache / "root", cache / "shared"
    say("a Debian 12")
    install(root)
    say("two packages")
    this, newer = packages(wheel, shared)
    shutil.copy(Path(__file__).with_name("publish.py"), shared)
    build(mlp(WIDTH, 2), shared / "bundle", loss="cross_entropy")
    checkout(wheel, shared)
    say("boot")
    with Container(root, cache, shared) as container:
        site = Site(container)
        site.serve_mqtt()
        try:
            go_through(site, this, newer, wheel)
        except BaseException:
            (cache / "journal.log").write_text(container.attempt("journalctl", "--no-pager")[1])
            raise
        finally:
            site.close()
    say("done")


def go_through(site: Site, this: Path, newer: Path, wheel: Path) -> None:
    """Each step, with what it saw."""
    life: list[tuple[str, Callable[[], str]]] = [
        ("install", lambda: steps.install(site, this)),
        ("AppArmor", lambda: steps.apparmor(site)),
        ("start", lambda: steps.start(site)),
        ("train and swap", lambda: steps.learn(site)),
        ("reload", lambda: steps.reload(site)),
        ("kill -9", lambda: steps.kill(site)),
        ("out of memory", lambda: steps.run_out_of_memory(site)),
        ("stop", lambda: steps.stop(site)),
        ("SIGSTOP", lambda: steps.hang(site)),
        ("instance", lambda: steps.second(site)),
        ("upgrade", lambda: steps.upgrade(site, newer)),
        ("downgrade", lambda: steps.downgrade(site, this)),
        ("purge", lambda: steps.purge(site)),
        ("install.sh", lambda: steps.script(site, wheel)),
    ]
    for name, step in life:
        if name == "start":
            site.listen()
        say(f"{name + ':':16}{step()}")


if __name__ == "__main__":
    # What was started is ended then too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("test-systemd: terminated"))
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]).resolve())
    except EdgedError as problem:
        sys.exit(f"test-systemd: {problem}")
