"""What a package goes through in its life, one function a step; each returns what it saw, in one line."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.booted.machine import until
from tests.booted.packages import NEWER
from tests.booted.site import UNIT

if TYPE_CHECKING:
    from tests.booted.site import Site

RATE = 100.0
WATCHDOG_SECONDS = 30.0


def install(site: Site, package: Path) -> str:
    """Enabled, but not started without a configuration."""
    machine = site.container
    machine.run("apt-get", "install", "-y", "--no-install-recommends", f"/mnt/{package.name}")
    version = machine.run("edged", "--version").strip()
    assert machine.run("systemctl", "is-enabled", UNIT).strip() == "enabled"
    state = machine.show(UNIT, "ActiveState", "ConditionResult", "Result")
    assert state == {"ActiveState": "inactive", "ConditionResult": "no", "Result": "success"}, state
    machine.run("systemd-analyze", "verify", UNIT, "edged@one.service", "edged.slice", "edged-train.slice")
    return f"{version}, enabled, not started without a configuration; units verify"


def apparmor(site: Site) -> str:
    """The parser compiles the profile of the package."""
    profile = "/usr/share/apparmor/extra-profiles/edged"
    site.container.run("apparmor_parser", "--skip-kernel-load", "--skip-cache", profile)
    return f"{profile} compiles"


def start(site: Site) -> str:
    """Ready, with the password from the credential store, and nothing but that readable by it."""
    machine = site.container
    site.configure()
    began = time.monotonic()
    machine.run("systemctl", "start", UNIT)
    took = time.monotonic() - began
    machine.run("edged", "config", "check", "/etc/edged/edged.yaml")
    exposure = machine.run("systemd-analyze", "security", "--no-pager", UNIT).splitlines()[-1].strip()
    entry = machine.journal("-u", UNIT, "EDGED_EVENT=running")
    assert '"event": "running"' in entry, machine.journal("-u", UNIT)
    until(lambda: site.events("started"), 30, "the event started")
    return f"ready after {took:.1f} s; running is a field in the journal; {exposure.lstrip('→-> ')}"


def learn(site: Site) -> str:
    """Samples in, a training run, a swap."""
    publisher = site.publish(1500, 300)
    assert publisher.wait(90) == 0
    stored = site.all_stored()
    site.order_training()
    group = until_trainer(site)
    until(lambda: site.events("training_finished", outcome="done"), 120, "a run")
    until(lambda: site.events("model_promoted"), 60, "a swap")
    promoted = site.events("model_promoted")[-1]
    return f"{stored}, trained in {group}, model {promoted['version']} took over"


def until_trainer(site: Site) -> str:
    """The control group of the trainer, which must be running within a minute."""
    found: list[str] = []

    def running() -> bool:
        code, text = site.container.attempt("pgrep", "-f", "edged.host.oom_first edged.trainer")
        if code == 0:
            group = site.container.attempt("grep", "^0::", f"/proc/{text.split()[0]}/cgroup")[1].strip()
            if group.endswith("/trainer"):
                found.append(group.removeprefix("0::"))
        return bool(found)

    until(running, 60, "the trainer is in its part of the control group")
    assert found[0] == f"/edged.slice/{UNIT}/trainer"
    return found[0]


def hang(site: Site) -> str:
    """SIGSTOP: the watchdog ends the daemon, and it comes back with everything."""
    publisher, before = site.publish(8000, RATE), site.pid()
    time.sleep(2)
    site.container.run("kill", "-STOP", str(before))
    took = site.until_back(before, WATCHDOG_SECONDS + 60)
    result = site.container.journal("-u", UNIT, "-n", "200")
    assert "Watchdog timeout" in result, result
    assert publisher.wait(120) == 0
    stored = site.all_stored()
    return f"another daemon after {took:.0f} s (WatchdogSec={WATCHDOG_SECONDS:.0f}), {stored}"


def kill(site: Site) -> str:
    """SIGKILL under load, five times: back, and nothing lost or there twice."""
    publisher, took = site.publish(6000, RATE), []
    for _ in range(5):
        time.sleep(1.5)
        before = site.pid()
        site.container.run("kill", "-KILL", str(before))
        took.append(site.until_back(before, 60))
    assert publisher.wait(120) == 0
    stored = site.all_stored()
    assert len(site.events("started", boot_reason="crash")) >= len(took)
    return f"five times, back after {max(took):.1f} s at most, {stored}"


def run_out_of_memory(site: Site) -> str:
    """The kernel ends the trainer for want of memory; the daemon goes on."""
    machine, before, restarts = site.container, site.pid(), site.restarts()
    failed = len(site.events("training_finished", outcome="failed"))
    lent = "memory" in machine.run("cat", "/sys/fs/cgroup/cgroup.controllers").split()
    limit, undo = _little_memory(site, lent=lent)
    try:
        if lent:
            before, restarts = site.pid(), site.restarts()
        site.order_training()
        failures = partial(site.events, "training_finished", outcome="failed")
        until(lambda: len(failures()) > failed, 120, "the run has failed")
        assert (site.pid(), site.restarts()) == (before, restarts), "the daemon is another one"
        told = machine.journal("-u", UNIT, "EDGED_EVENT=training_failed")
        assert "SIGKILL" in told, told
        publisher = site.publish(300, RATE)
        assert publisher.wait(60) == 0
        stored = site.all_stored()
    finally:
        undo()
    return f"{limit}: the trainer was killed, the daemon is the same process and has {stored}"


def _little_memory(site: Site, *, lent: bool) -> tuple[str, Callable[[], None]]:
    """Less memory than a trainer needs; what was done, and how to undo it."""
    if lent:
        site.configure(training={"memory": "64MiB"})
        site.container.run("systemctl", "restart", UNIT)

        def undo() -> None:
            site.configure()
            site.container.run("systemctl", "restart", UNIT)

        return "training.memory 64 MiB", undo
    memory, mib = site.container.memory, 1 << 20
    limit = memory.held() + 40 * mib
    memory.limit(limit)
    return f"a board with {limit // mib} MiB", lambda: memory.limit(None)


def reload(site: Site) -> str:
    """Configurations are read again under load by the same process; nothing is lost."""
    publisher, before = site.publish(1500, RATE), site.pid()
    levels = ("debug", "info", "warning", "debug", "info")
    for level in levels:
        site.configure(log={"level": level})
        site.container.run("systemctl", "reload", UNIT)
        time.sleep(1)
    assert publisher.wait(60) == 0
    stored = site.all_stored()
    assert site.pid() == before
    told = site.container.journal("-u", UNIT, "EDGED_EVENT=reloaded").splitlines()
    assert len(told) >= len(levels) - 1, told  # what level warning leaves out
    return f"{len(levels)} times by process {before}, {stored}"


def stop(site: Site) -> str:
    """An orderly end in the middle of a training run, within ten seconds."""
    site.order_training()
    until_trainer(site)
    began = time.monotonic()
    site.container.run("systemctl", "stop", UNIT)
    took = time.monotonic() - began
    assert took <= 10, took
    assert site.container.show(UNIT, "Result")["Result"] == "success"
    assert site.container.attempt("pgrep", "-f", "edged.trainer")[0] != 0, "a trainer is left"
    site.container.run("systemctl", "start", UNIT)
    return f"after {took:.1f} s while training, no process left, started again"


def second(site: Site) -> str:
    """Another instance beside it, with a state of its own."""
    machine, unit = site.container, "edged@second.service"
    machine.write("/etc/edged/second.yaml", "device: {id: second}\nstream: {features: 2}\nmqtt: {port: 1}\n")
    config = machine.path("/etc/edged/second.yaml")
    config.write_text(machine.path("/etc/edged/edged.yaml").read_text().replace("id: rig", "id: second"))
    machine.write("/etc/credstore/edged@second.mqtt-password", "wrong\n", 0o600)
    machine.run("systemctl", "start", unit)
    assert machine.run("ls", "-d", "/var/lib/edged@second/samples.db").strip()
    assert machine.show(unit, "Slice", "ActiveState") == {"Slice": "edged.slice", "ActiveState": "active"}
    return "edged@second runs beside it on /var/lib/edged@second"


def upgrade(site: Site, newer: Path) -> str:
    """A newer package under load: state kept, nothing lost, every instance on the new version."""
    machine, before, version = site.container, site.status(), site.version()
    publisher = site.publish(3000, RATE)
    time.sleep(2)
    machine.run("dpkg", "-i", f"/mnt/{newer.name}")
    until(site.active, 60, "the newer edged is ready")
    assert publisher.wait(120) == 0
    stored = site.all_stored()
    after = site.status()
    assert site.version() == NEWER
    assert after["model"]["version"] == before["model"]["version"]
    assert machine.show("edged@second.service", "ActiveState")["ActiveState"] == "active"
    return f"{version} to {NEWER}, model {after['model']['version']} kept, {stored}, both instances run"


def downgrade(site: Site, package: Path) -> str:
    """Back to a package that cannot read the newer state: refused, and the newer one goes on."""
    code, words = site.container.attempt("dpkg", "-i", f"/mnt/{package.name}")
    assert code != 0, words
    assert "was written by a newer edged" in words, words
    until(site.active, 60, "the newer edged is ready again")
    assert site.version() == NEWER
    publisher = site.publish(300, RATE)
    assert publisher.wait(60) == 0
    stored = site.all_stored()
    reason = next(line for line in words.splitlines() if "was written by" in line)
    return f"refused ({reason.partition('edged: ')[2]}), {NEWER} went on: {stored}"


def purge(site: Site) -> str:
    """Removed: state and configuration stay. Purged: nothing is left."""
    machine = site.container
    machine.run("dpkg", "-r", "edged")
    assert machine.path("/var/lib/edged/samples.db").exists()
    assert machine.path("/etc/edged/edged.yaml").exists()
    machine.run("dpkg", "-P", "edged")
    nothing_left(site)
    return "user, group, processes and every file named edged are gone"


def nothing_left(site: Site) -> None:
    """No user, no process, no file is edged's."""
    machine = site.container
    assert machine.attempt("getent", "passwd", "edged")[0] != 0
    assert machine.attempt("getent", "group", "edged")[0] != 0
    assert machine.attempt("pgrep", "-f", "/opt/edged")[0] != 0
    elsewhere = ["-path", "/proc", "-o", "-path", "/mnt", "-o", "-path", "/sys"]
    search = ["find", "/", "-xdev", "(", *elsewhere, ")", "-prune", "-o", "-name", "*edged*", "-print"]
    found = machine.run(*search)
    assert found == "", found


def script(site: Site, wheel: Path) -> str:
    """install.sh, twice over; then its ways to remove."""
    machine, installer = site.container, "/mnt/checkout/deploy/install.sh"
    order = ["sh", installer, "--wheel", f"/mnt/wheels/{wheel.name}", "--find-links", "/mnt/wheels"]
    machine.run(*order)
    assert not site.active(), "started without a configuration"
    site.configure()
    machine.run(*order)
    before, site.sent = site.pid(), 0
    publisher = site.publish(300, RATE)
    machine.run(*order)
    assert publisher.wait(60) == 0
    stored = site.all_stored()
    assert site.pid() != before
    machine.run("sh", installer, "--uninstall")
    assert machine.path("/var/lib/edged/samples.db").exists()
    machine.run("sh", installer, "--uninstall", "--purge")
    nothing_left(site)
    return f"installed, again, and again under load: {stored}; uninstalled, purged"
