"""A coordinator in a thread or a process, and devices that it coordinates."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from safetensors.numpy import save_file

from edged.fleet.config import load
from edged.fleet.coordinator.coordinator import Coordinator
from edged.mqtt import weight_encoding as weights
from edged.storage.files.atomic import DISK
from tests.fleet.senders import FLEET, Senders, base_weights

if TYPE_CHECKING:
    from edged.domain.arrays import Floats
    from edged.storage.files.atomic import Disk

    MakeSite = Callable[..., "Site"]

EVERYONE = {"everyone": True}
NO_GATE = {"evaluate": False}


class Site:
    """The files of a coordinator, and those who run on them."""

    def __init__(self, folder: Path, port: int, weights: dict[str, Floats], **sections: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(weights, folder / "model.safetensors")
        self.folder, self.port, self.path, self.dir = folder, port, folder / "fleet.yaml", folder / "state"
        model = {"model": "model.safetensors", "bundle": "f00"} if "model" not in sections else {}
        values = model | {
            "fleet": FLEET, "dir": "state",
            "choose": EVERYONE, "gate": NO_GATE,
            "mqtt": {"host": "127.0.0.1", "port": port}, "log": {"level": "warning"},
        } | sections  # fmt: skip
        self.path.write_text(yaml.safe_dump(values), encoding="utf-8")
        self.process: subprocess.Popen[bytes] | None = None
        self.coordinator: Coordinator | None = None
        self._thread: threading.Thread | None = None
        self._senders: list[Senders] = []

    def start(self, disk: Disk = DISK) -> Coordinator:
        """Run a coordinator in a thread."""
        self.coordinator = Coordinator(load(self.path), disk=disk)
        self._thread = threading.Thread(target=self.coordinator.run)
        self._thread.start()
        return self.coordinator

    def finish(self, seconds: float = 60.0) -> None:
        """Wait until the last round is done."""
        assert self._thread is not None
        self._thread.join(seconds)
        assert not self._thread.is_alive()

    def spawn(self) -> subprocess.Popen[bytes]:
        """Run a coordinator in a process."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "edged", "fleet", "run", str(self.path)],
                stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        return self.process

    def model(self, digest: str) -> dict[str, Floats]:
        """The weights of a model that it has made."""
        return weights.unpack((self.dir / "models" / digest / weights.FILE).read_bytes())

    def senders(self, names: list[str], **more: Any) -> Senders:
        """Devices at its broker."""
        made = Senders(self.port, names, **more)
        self._senders.append(made)
        return made

    def close(self) -> None:
        """End all that still runs."""
        for senders in self._senders:
            senders.close()
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(10)
        if self.coordinator is not None and self._thread is not None and self._thread.is_alive():
            self.coordinator.stop()
            self._thread.join(20)


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[MakeSite]:
    """Makes the files of coordinators, each at the broker of a port."""
    made: list[Site] = []

    def make(port: int, weights: dict[str, Floats] | None = None, **sections: Any) -> Site:
        made.append(Site(tmp_path / f"site{len(made)}", port, weights or base_weights(), **sections))
        return made[-1]

    yield make
    for site in made:
        site.close()
