"""The daemon's process: `edged run`. Signals, exit codes, and one device.

Imports nothing of the training stack; training happens in a child process.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import edged.lazy_imports  # noqa: F401  before anything that imports what it keeps out
from edged import __version__, logs
from edged.config import Config, loader
from edged.device import Device
from edged.device.commands.replacement import ConfigFile, Restart, new_failure
from edged.device.startup.open_state import record_failed_start, record_shutdown
from edged.errors import CorruptError, EdgedError, from_system
from edged.host.systemd import Notifier, watchdog_interval
from edged.host.waiting import WakeupQueue
from edged.storage.files.atomic import DirectoryLock

if TYPE_CHECKING:
    from edged.device.several import SeveralStreams

log = logs.get_logger("edged.daemon")

SWITCH_INTERVAL = 0.0001  # seconds a thread may hold the interpreter: bounds what others add to a prediction
EXIT_DAMAGED = 5
"""Something in the state directory is damaged: the next starts set it aside and begin a new one."""


def run(path: Path) -> int:
    """Run the daemon until SIGTERM or SIGINT, or until a database turns out to be damaged; the exit code."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    # SIGABRT is how systemd's watchdog ends a daemon; without one it keeps its meaning.
    watched = (signal.SIGABRT,) if watchdog_interval() is not None else ()
    # A queue: SIGHUP and SIGTERM may come while the other is being handled, or before all is ready.
    endings = WakeupQueue((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, *watched))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP})
    device = _start(path, endings)
    while True:
        ending = endings.get()
        if ending == signal.SIGHUP:
            device.reload(path)
        elif isinstance(ending, str | int | Restart):
            break
        else:
            device.repair(ending)
    if ending == signal.SIGABRT:
        for folder in device.state_dirs:
            record_shutdown(folder, "watchdog")
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.abort()
    if isinstance(ending, Restart):
        log.info("restarting", reason="config.replace")
        device.parts.notifier.reloading()
        device.stop()
        _restart(path)
    damaged = ending if isinstance(ending, str) else None
    log.info("stopping", damaged=damaged)
    device.parts.notifier.stopping()
    device.stop(damaged)
    return EXIT_DAMAGED if damaged else 0


def _start(path: Path, endings: WakeupQueue) -> Device | SeveralStreams:
    """Start the device; if a configuration file on trial fails, put the file before it back and restart."""
    file = ConfigFile(path)
    file.begin_start()
    try:
        device = _start_device(path, endings)
    except (EdgedError, OSError) as problem:
        error = problem if isinstance(problem, EdgedError) else from_system(problem)
        if not isinstance(error, CorruptError) and file.revert(error.line()):
            _restart(path)
        raise
    trial = file.trial
    failed = None if trial is None else new_failure(device.failed, trial.failing)
    if failed is not None:
        device.stop()
        file.revert(failed)
        _restart(path)
    file.accept()
    device.parts.replacement.settle()
    return device


def _start_device(path: Path, endings: WakeupQueue) -> Device | SeveralStreams:
    """Start the device that the configuration describes."""
    ignored: list[str] = []
    configs = loader.load_all(path, ignored=ignored)
    config = configs[0]
    logs.configure(config.log.level)
    for problem in ignored:
        log.warning(
            "config_set_ignored", problem=problem, remedy="send config.set again, or null for the key"
        )
    _confine_trainer(config)
    notifier = Notifier()
    try:
        device = _open_device(configs, path, notifier, endings)
        device.start()
    except EdgedError:
        if DirectoryLock.holder(config.device_dir) in (None, os.getpid()) and not config.name:
            record_failed_start(config.storage.dir)
        raise
    log.info(
        "running",
        device=config.device.id,
        version=__version__,
        pid=os.getpid(),
        **device.serves,
    )
    return device


def _restart(path: Path) -> NoReturn:
    """Take the place of this process, as at a start."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    os.execv(sys.executable, [sys.executable, "-m", "edged.daemon", str(path)])  # noqa: S606


def _open_device(
    configs: Sequence[Config], path: Path, notifier: Notifier, endings: WakeupQueue
) -> Device | SeveralStreams:
    if configs[0].name:
        from edged.device.several import SeveralStreams
        from edged.host.limits import open_many_files

        open_many_files()
        return SeveralStreams(configs, path, notifier, endings)
    return Device(configs, path, notifier, endings)


def _confine_trainer(config: Config) -> None:
    """Where systemd lends this service its control group: bounds for what trains, before it is started."""
    if "INVOCATION_ID" not in os.environ:
        return
    from edged.host import limits

    folder = limits.lent()
    if folder is None:
        return
    try:
        division = limits.divide(folder, config.training.memory or limits.half_of_memory())
    except OSError as problem:
        log.warning("trainer_not_confined", problem=f"{problem.filename}: {problem.strerror}")
        return
    log.info("trainer_confined", controllers=division.controllers, memory_max=division.memory_max)


def main() -> int:
    """`python -m edged.daemon CONFIG`; the exit codes are in docs/promises.md."""
    try:
        return run(Path(sys.argv[1]))
    except (EdgedError, OSError, ImportError, MemoryError) as problem:
        error = problem if isinstance(problem, EdgedError) else from_system(problem)
        sys.stderr.writelines(f"edged: {line}\n" for line in error.lines())
        return EXIT_DAMAGED if isinstance(error, CorruptError) else error.exit_code


if __name__ == "__main__":
    sys.exit(main())
