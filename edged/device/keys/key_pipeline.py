"""One key that has a model of its own: a stream's pipeline over the samples of that key alone."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edged.device.events import Events
from edged.device.learning.run_queue import RunQueue
from edged.device.pipeline import Pipeline
from edged.device.startup.recovery import unfinished
from edged.device.startup.restore import restore_mix
from edged.domain.events import EventOfKey, KeyModelChanged
from edged.domain.judging.expert_mix import ExpertMix
from edged.domain.judging.outputs import log_likelihoods
from edged.domain.judging.own_or_common import OwnOrCommon
from edged.errors import CorruptError
from edged.logs import get_logger
from edged.storage.files.atomic import MANIFEST
from edged.storage.models.checkpoints import Checkpoints
from edged.storage.models.key_folders import KeyRecord
from edged.storage.models.reopening_registry import ReopeningRegistry

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from edged.config import Config
    from edged.device.pipeline import Host
    from edged.device.serving import Predictor
    from edged.domain.events import Event
    from edged.domain.protocols import ServedModel
    from edged.storage.models.bundles import Bundle
    from edged.storage.models.registry import Registry

log = get_logger("edged.keys")

COMMON = "weights"
"""Source of the registry's record of a copy of the stream's model: the learner goes on from its weights."""
REMEMBERED = 500  # answers of a key that wait for labels
MODELS_KEPT, CHECKPOINTS_KEPT = 4, 2
SLOWER = 0.3  # learning rate of a key, in times the stream's: it has few labels, and weights that are good


def config_of(config: Config, folder: Path) -> Config:
    """The configuration by which a key learns whose state directory is `folder`."""
    training, serving, storage = config.training, config.serving, config.storage
    checkpoints = min(training.keep_checkpoints, CHECKPOINTS_KEPT)
    own: dict[str, Any] = {"scarce_labels": False, "key_share": 1.0, "keep_checkpoints": checkpoints}
    # The weights come from the stream's model, and know inputs in its units alone.
    own["restandardise"] = False
    own["learning_rate"] = training.learning_rate * SLOWER
    return config.model_copy(
        update={
            "storage": storage.model_copy(
                update={"dir": folder, "keep_models": min(storage.keep_models, MODELS_KEPT)}
            ),
            "training": training.model_copy(update=own),
            "serving": serving.model_copy(update={"remember": min(serving.remember, REMEMBERED)}),
            "fleet": None,
        }
    )


class KeyEvents(Events):
    """Passes on what happens to the model of one key, which every event names."""

    def __init__(self, key: str, events: Events) -> None:
        super().__init__()
        self._key, self._events = key, events

    def event(self, event: Event) -> None:
        """Pass the event on, with the key."""
        self._events.event(EventOfKey(self._key, event))

    def states_changed(self) -> None:
        """Pass it on: the states tell how many keys have models."""
        self._events.states_changed()


class CommonExpert:
    """What the stream's model of now says, as an expert of a key beside its own."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def log_likelihoods(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """What it says of rows `(n, d)`, `(n, c)`."""
        return log_likelihoods(self._predictor.champion.model.predict(x))


class KeyPipeline(Pipeline):
    """What serves and learns one key; `common` is the stream's pipeline, with whose reader it shares the log.

    `contest` says which of the two models answers. `used` is the monotonic time of the newest sample.

    Raises CorruptError when none of its models can be loaded.
    """

    def __init__(
        self, key: str, config: Config, bundle: Bundle, registry: Registry, common: Pipeline, host: Host
    ) -> None:
        self.key, self._common = key, common
        registry_is_new = registry.champion() is None
        if registry_is_new:
            self._copy(registry, config.storage.dir)
        super().__init__(config, bundle, registry, common.samples, common.reader.of_key(key), host)
        self.scheduler.key = key
        self.scheduler.client.enrol(key, config)
        self.models.forget_base()
        self.rollout.last_resort = self
        if registry.get(self.predictor.champion.version).source == "bundle":
            raise CorruptError("no model of this key can be loaded", where=str(config.storage.dir))
        if isinstance(self.mix, ExpertMix):
            self.mix.common = CommonExpert(common.predictor)
            restore_mix(registry, self.mix)  # loading its model without the stream's has begun it anew
        self.contest = OwnOrCommon()
        self.orders = RunQueue(self.scheduler.triggers)
        self.used = float("-inf")
        self._sharing = (0, True)
        self.resume(unfinished(Checkpoints(config.storage.dir / "checkpoints", CHECKPOINTS_KEPT), registry))

    @property
    def shares(self) -> bool:
        """Whether its champion is a copy of the stream's model: nothing of its own serves yet."""
        version = self.predictor.champion.version
        if self._sharing[0] != version:
            self._sharing = version, self.registry.get(version).source == COMMON
        return self._sharing[1]

    @property
    def serves(self) -> bool:
        """Whether the key's own model answers."""
        return self.contest.own

    def answering(self) -> KeyModelChanged:
        """The event that tells which of the two models answers."""
        return KeyModelChanged(self.key, "own" if self.serves else "stream")

    @property
    def urgent(self) -> bool:
        """Whether its samples or its quality have changed, so that it should train soon."""
        return self.scheduler.triggers.drifted or self.scheduler.triggers.fallen

    def restore(self, record: KeyRecord) -> None:
        """Go on from what was known when the model was unloaded."""
        try:
            if record.contest is not None:
                self.contest.restore(record.contest)
        except CorruptError as problem:
            log.warning("contest_lost", key=self.key, problem=problem.line())

    def follow_common(self) -> None:
        """While nothing of its own serves, go on from the stream's newest model."""
        champion = self.registry.get(self.predictor.champion.version)
        newest = self._common.predictor.champion.version
        if champion.source != COMMON or champion.data.common == newest:
            return
        self.predictor.swap(self.models.open(self._copy(self.registry, self.config.storage.dir)), watch=False)

    def share(self) -> ServedModel:
        """Go back to the stream's model; the key learns on from there."""
        served = self.models.open(self._copy(self.registry, self.config.storage.dir, "rolled_back"))
        self.contest.give_up()
        self.predictor.revert(served)
        return served

    def _copy(self, registry: Registry, folder: Path, outgoing: Any = None) -> int:
        """Make a copy of the stream's present model the champion; its version."""
        stream, clock = self._common.registry, self._common.clock
        record = stream.get(self._common.predictor.champion.version)
        source, staging = stream.verify(record.version).parent, folder / "candidates" / ".staging-common"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        for file in source.iterdir():
            if file.name != MANIFEST:
                shutil.copyfile(file, staging / file.name)
        data = replace(record.data, common=record.version)
        made = registry.add(staging, created=clock.now(), source=COMMON, data=data, metrics=record.metrics)
        registry.set_champion(made.version, "the stream's model", clock.now(), outgoing=outgoing)
        return made.version

    def to_record(self) -> KeyRecord:
        """What is to be known of the key while its model is not loaded."""
        return self.updated(KeyRecord(self.key, runs=self.registry.run_count()))

    def updated(self, before: KeyRecord) -> KeyRecord:
        """The same without a look at the registry, from what was known `before`."""
        quality = self.predictor.live_quality()
        right = quality.mean if quality.of_classes else None
        version = 0 if self.shares else self.predictor.champion.version
        known: dict[str, Any] = {
            "consumed": self.scheduler.consumed,
            "version": version,
            "contest": self.contest.state(),
        }
        return replace(before, accuracy=before.accuracy if right is None else right, **known)

    def close_until_used(self) -> None:
        """Let the stream's audit log have what waits for it, and close the registry until it is used."""
        registry = self.registry
        if registry.audit_waits and (waiting := registry.waiting_audit()):
            for entry in waiting.values():
                self._common.registry.record_audit(replace(entry, key=self.key))
            registry.remove_audit(list(waiting), None)
        if isinstance(registry, ReopeningRegistry):
            registry.close_until_used()

    def store_state(self) -> None:
        """Store what a later loading goes on from; StorageError when the disk refuses."""
        self.registry.set_value("drift", self.predictor.drift_state())
        self.registry.set_value("mix", self.predictor.mix.state())
        if self.predictor.sets is not None:
            self.registry.set_value("sets", self.predictor.sets.state())
