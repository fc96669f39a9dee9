"""The command `wipe`: what the device has collected and learned goes, down to the bytes in its files."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from edged.device.commands.models import EXPORTS
from edged.errors import ConfigError, EdgedError, RefusedError, StorageError
from edged.storage.models.fleet_models import FOLDER as FLEET
from edged.storage.models.sent_updates import FOLDER as SENT
from edged.storage.models.sent_updates import ROUNDS
from edged.storage.samples.erasure import erase_files

if TYPE_CHECKING:
    from edged.device.commands.context import Parts
    from edged.domain.commands.tasks import Task

USUAL = ("samples", "checkpoints", "models")
LOOK_SECONDS = 0.2


class WipeCommands:
    """Erases between two runs, while serving goes on."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def wipe(self, request: dict[str, Any], task: Task) -> dict[str, Any]:
        """Erase what is named: samples, checkpoints and models when nothing is.

        Raises
        ------
        RefusedError
            Without the device's id as `confirm`.
        """
        parts, what = self._parts, request.get("what", USUAL)
        if request["confirm"] != parts.config.device.id:
            raise RefusedError("that is not this device", where="confirm", remedy="give the device's id")
        if "labels" in what and parts.server.schema.labels_itself:
            raise ConfigError(
                "the labels of this stream are its samples", where="what", remedy="name samples"
            )
        self._end_run()
        gone: dict[str, int] = {}
        done = threading.Event()

        problems: list[EdgedError] = []

        def also() -> dict[str, int]:
            try:
                return self._rest(what)
            except StorageError:
                raise  # tried again
            except EdgedError as problem:
                problems.append(problem)
                return {}

        def told(counts: dict[str, int]) -> None:
            gone.update(counts)
            done.set()

        parts.learning.erase(
            parts.config.storage.dir,
            told,
            samples="samples" in what,
            labels="labels" in what,
            checkpoints="checkpoints" in what,
            before=parts.ingest.settled,
            also=also,
        )
        while not done.wait(LOOK_SECONDS):
            if task.cancelled:
                raise EdgedError("it was cancelled while it waited, and may be done later", where="wipe")
        parts.publish_states()
        if problems:
            raise problems[0]
        return gone

    def _end_run(self) -> None:
        try:
            self._parts.learning.cancel()
        except RefusedError:
            return  # no run is under way

    def _rest(self, what: list[str]) -> dict[str, int]:
        """What is not in the sample log, on the learning thread."""
        parts, gone = self._parts, {}
        state = parts.config.storage.dir
        if "models" in what:
            for record in parts.registry.records():
                if record.pinned:
                    parts.registry.unpin(record.version)
            parts.succession.begin_anew("wiped")
            gone["models"] = parts.registry.erase()
        if "samples" in what or "models" in what:
            # Candidates and databases that were set aside hold samples, exports what was learned from them.
            doomed = [state / "candidates", state / EXPORTS, *sorted(state.glob("*.damaged-*"))]
            doomed += [state / name for name in (SENT, ROUNDS, FLEET)] if "models" in what else []
            gone["files"] = erase_files(doomed)
        if "checkpoints" in what or "models" in what:
            parts.promoter.forget_trust()
        return gone
