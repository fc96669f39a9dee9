"""What commands need to change the state directory of a device that does not run."""

from __future__ import annotations

from pathlib import Path

from edged.clock import SystemClock
from edged.config import Config
from edged.device.promotion import ModelStore
from edged.domain.judging.regimes import Regimes
from edged.engines.inference import InferenceReader
from edged.errors import RefusedError
from edged.storage.backup.restore import RESTORED
from edged.storage.files.atomic import DirectoryLock
from edged.storage.models.registry import Registry


def lock_state(state: Path, command: str | None = None) -> DirectoryLock:
    """Lock a state directory; RefusedError while a daemon runs, or after a restore that was cut off."""
    pid = DirectoryLock.holder(state)
    if pid is not None:
        raise RefusedError(
            f"another edged is using this state directory (pid {pid})",
            where=str(state),
            remedy="stop it first" + (f", or ask it over MQTT: request/{command}" if command else ""),
        )
    if command is not None and (state / RESTORED).exists():
        raise RefusedError("a restore was cut off", where=str(state), remedy="`edged run` finishes it")
    return DirectoryLock(state)


def model_store(config: Config, registry: Registry) -> ModelStore:
    """The models of a state directory, for one who holds its lock."""
    return ModelStore(config, registry, model_reader(config), Regimes(), SystemClock())


def model_reader(config: Config) -> InferenceReader:
    """What loads models as `serving` says."""
    return InferenceReader(providers=config.serving.provider)
