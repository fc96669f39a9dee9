"""Complete transfers: each becomes a candidate, which the gate judges; its outcome is reported once.

Which of them the configuration and the keys let in is seen when they are announced, and when installed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edged.config import Config
from edged.device.events import Events
from edged.device.learning.trainer_client import TrainerClient
from edged.device.learning.trainer_slot import StoppedRunError
from edged.device.live_pipeline import LivePipeline
from edged.device.startup.first_opening import FirstOpenings
from edged.domain.events import TransferInstalled, TransferOutcome
from edged.domain.training.trainer_messages import AdoptInitial, AdoptModel, AdoptWeights
from edged.domain.training.training_run import Candidate, RunCause, RunEnd
from edged.errors import EdgedError, RefusedError, StorageError
from edged.logs import get_logger
from edged.signing import key_id
from edged.storage.journal.transfers import Transfer, TransferPurpose, TransferStaging
from edged.storage.models.bundle_archive import ActiveBundle, InstalledBundles
from edged.storage.models.trust import Trust

OUTCOMES = "transfers"  # name of the registry's value that remembers how the last transfers ended
REMEMBERED = 32
RETRIES = 2  # after an error of the disk

log = get_logger("edged.applying")


class TransferInstaller:
    """Installs transfers between two training runs; the same transfer is installed once.

    `pipeline`: its trainer makes candidates, its rollout has them judged, its registry remembers outcomes.
    `staging` holds the chunks of the transfer. `first` opens bundles and models before anything else does.
    `installed`: the bundles that came before; `active`: the one that trains. `events` hears how each transfer
    has ended.

    Attributes
    ----------
    admission
        Says which transfers are taken.
    """

    def __init__(
        self,
        pipeline: LivePipeline,
        staging: TransferStaging,
        first: FirstOpenings,
        installed: InstalledBundles,
        active: ActiveBundle,
        events: Events,
    ) -> None:
        self._pipeline, self._staging, self._events = pipeline, staging, events
        self._first, self._installed, self._active = first, installed, active
        self._config, self._registry = pipeline.config, pipeline.registry
        self.admission = Admission(self._config, first.trust)
        self._tries = 0

    def outcome(self, name: str, sha256: str) -> TransferOutcome | None:
        """Return how a transfer has ended; None if it has not."""
        kept = (self._registry.get_value(OUTCOMES) or {}).get(name)
        if kept is not None and kept["update"] == sha256:
            return TransferOutcome.from_json(kept)
        return self._outcome_of_model(name, sha256)

    def install(self, transfer: Transfer) -> None:
        """Make a candidate of the transfer and bring it to the rollout; call it on the learning thread.

        Raises StorageError when the disk refuses: call it again.
        """
        if self.outcome(transfer.name, transfer.sha256) is not None:
            self._staging.discard(transfer)  # a crash came between the outcome and this
            return
        if not self._staging.holds(transfer):
            return  # it has waited so long that another one took its place
        refused = TransferOutcome(transfer.name, transfer.sha256, "refused")
        trust = self._first.trust
        try:
            self.admission.check(transfer.purpose)
            trust.begin_opening(transfer.sha256)
            candidate = self._candidate(transfer)
        except StoppedRunError:
            trust.end_opening(transfer.sha256)
            return  # the next start takes it up
        except EdgedError as problem:
            if isinstance(problem, StorageError) and self._tries < RETRIES:
                self._tries += 1
                trust.end_opening(transfer.sha256)
                raise
            self._finish(transfer, replace(refused, reasons=(problem.line(),)))
            return
        _, served = self._pipeline.rollout.consider(candidate)
        unstored = "the candidate could not be verified or stored: see the event candidate_rejected"
        outcome = self._outcome_of_model(transfer.name, transfer.sha256)
        self._finish(transfer, outcome or replace(refused, reasons=(unstored,)))
        if served is not None:
            self._pipeline.record_champion(served.version)

    def _candidate(self, transfer: Transfer) -> Candidate:
        """Have the trainer make a candidate."""
        content = self._staging.content(transfer)
        transfer.check(content)
        clock, kind = self._pipeline.clock, transfer.purpose.kind
        run = self._registry.begin_run(kind, clock.now(), RunCause(transfer=transfer.name))
        try:
            if kind == "bundle":
                candidate = self._from_bundle(run, transfer, content)
            elif kind == "model":
                self._first.open_model(content, self._active.path())
                candidate = self._pipeline.scheduler.client.run(AdoptModel(run, content.parent))
            else:
                candidate = self._pipeline.scheduler.client.run(AdoptWeights(run, content.parent))
        except EdgedError as problem:
            end = RunEnd(run, outcome="failed", error=problem.line())
            self._registry.end_run(run, clock.now(), end.outcome, end)
            raise
        self._registry.end_run(run, clock.now(), "done", candidate.received)
        return candidate

    def _from_bundle(self, run: int, transfer: Transfer, content: Path) -> Candidate:
        """Install a bundle and export its own model, in a trainer process of its own."""
        known = {str(record.data.bundle) for record in self._registry.records()}
        fingerprint = self._first.install_bundle(content, known, downgrade=transfer.purpose.downgrade)
        model = self._config.model.model_copy(update={"bundle": self._installed.find(fingerprint)})
        trainer = TrainerClient(self._config.model_copy(update={"model": model}))
        try:
            return trainer.run(AdoptInitial(run, transfer.name, transfer.sha256))
        finally:
            trainer.close()

    # ---- outcomes --------------------------------------------------------------------------

    def _outcome_of_model(self, name: str, sha256: str) -> TransferOutcome | None:
        """Return the outcome by the registry's models: an accepted one has served, or serves."""
        made = [r for r in self._registry.records() if r.data.update == sha256]
        if not made or made[-1].data.transfer != name or made[-1].status == "candidate":
            return None
        model = made[-1]
        state = "refused" if model.status == "rejected" else "promoted"
        reasons = () if model.verdict is None else model.verdict.reasons
        return TransferOutcome(name, sha256, state, reasons, model.version)

    def _finish(self, transfer: Transfer, outcome: TransferOutcome) -> None:
        """Store the outcome first, so that the same transfer has no second effect; then report it."""
        self._tries = 0
        kept = self._registry.get_value(OUTCOMES) or {}
        kept.pop(transfer.name, None)
        newest = [*kept.items(), (transfer.name, outcome.to_json())][-REMEMBERED:]
        self._registry.set_value(OUTCOMES, dict(newest))
        self._first.trust.end_opening(transfer.sha256)
        self._staging.discard(transfer)
        event = TransferInstalled(transfer.purpose.kind, outcome)
        log.info(event.name, **event.to_json())
        self._events.event(event)


class Admission:
    """Admits transfers by `config` (sections `weights`, `install` and `model.keys`) and the keys in `trust`.

    A transfer can wait on the disk for a long time, and the next start can find another configuration.
    """

    def __init__(self, config: Config, trust: Trust) -> None:
        self._config, self._trust = config, trust

    def announced(self, purpose: TransferPurpose) -> TransferPurpose:
        """Return the purpose with the ids of the keys that count now.

        Raises RefusedError when no such transfer is taken.
        """
        self._check(purpose)
        return replace(purpose, keys=self._keys())

    def check(self, purpose: TransferPurpose) -> None:
        """Raise the errors of `announced`, and RefusedError for weights if a key has lost its effect since.

        Bundles have a signature of their own.
        """
        self._check(purpose)
        if purpose.kind != "weights" or not self._config.model.keys:
            return
        if not purpose.keys or not set(purpose.keys) <= set(self._keys()):
            raise RefusedError(
                "the weights were announced when other keys counted",
                where="model.keys",
                remedy="announce them again, signed, as another transfer",
            )

    def _keys(self) -> tuple[str, ...]:
        return tuple(key_id(key) for key in self._trust.current(self._config.model.keys))

    def _check(self, purpose: TransferPurpose) -> None:
        kind, install = purpose.kind, self._config.install
        if kind == "weights":
            if not self._config.weights.accept:
                raise RefusedError("this device does not accept weights", where="weights.accept")
            return
        if kind == "model" and self._config.model.keys:
            raise RefusedError(
                "this device takes signed bundles only, and a model file has no signature",
                where="model.keys",
                remedy="send a signed bundle with bundle.install",
            )
        if install is None:
            raise RefusedError(
                f"this device takes no {kind}s",
                where="install",
                remedy="add the section to its configuration",
            )
