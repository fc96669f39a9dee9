"""Promotion: candidate → gate → registry → champion, and the way back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edged.device.promotion.evaluator import CandidateEvaluator
from edged.device.promotion.model_loader import ModelLoader, line_of
from edged.domain.judging.gate import Verdict, refuse
from edged.domain.judging.label_trust import LabelTrust
from edged.domain.model_files import INT8, model_in
from edged.errors import EdgedError, RefusedError, StorageError
from edged.host.timeout import within
from edged.logs import get_logger
from edged.storage.files.atomic import remove
from edged.storage.models.candidates import PROBE_FILES
from edged.storage.models.records import BAD

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from edged.clock import Clock
    from edged.config import Config, GateConfig
    from edged.domain.judging.regimes import Regimes
    from edged.domain.protocols import Holdout, Model, ModelReader, ServedModel
    from edged.domain.stream.sample import Window
    from edged.domain.training.training_run import Candidate
    from edged.storage.models.records import ModelRecord
    from edged.storage.models.registry import Registry

log = get_logger("edged.promote")

TRUST = "label_trust"


class Promoter:
    """Judges candidates, keeps the registry, and knows which model may be served.

    Parameters
    ----------
    config
        Sections `gate`, `stream`, `storage` and `serving`.
    registry
        Where models are kept.
    holdout
        Labelled rows that no model has learned from.
    reader
        Loads models. A daemon's sleeps a little between pieces of work, so that the serving thread answers
        in between.
    regimes
        Earlier regimes, whose models are kept and can be tried again.
    clock
        Dates what is stored.
    """

    def __init__(
        self,
        config: Config,
        registry: Registry,
        holdout: Holdout,
        reader: ModelReader,
        regimes: Regimes,
        clock: Clock,
    ) -> None:
        self.regimes = regimes
        self._config = config.gate
        self._models = ModelLoader(config, registry, reader, clock)
        self._judging = CandidateEvaluator(config, registry, holdout, self._models, reader, regimes)
        self._schema = config.stream.to_schema()
        self._registry = registry
        self._clock = clock
        self._keep = config.storage.keep_models
        self._staging = config.storage.dir / "candidates"
        self._recalls = config.gate.recall
        self.trust = LabelTrust.load(self._schema.task, registry.get_value(TRUST))
        self._recalled: dict[int, ServedModel] = {}
        self.promotions = 0
        self.rejections = 0
        self.rollbacks = 0

    @property
    def unusable(self) -> list[int]:
        """Versions that could not be loaded."""
        return self._models.unusable

    # ---- at start --------------------------------------------------------------------------

    def boot(self, base_model: Path, sha256: str | None = None) -> ServedModel:
        """The model to serve at start: champion, previous, an older good one, else the bundle's own.

        With `sha256`, its hash in hexadecimal, the bundle's own is not used where it is another file.

        Raises
        ------
        ModelError
            When not even the bundle's base model can be loaded.
        ConfigError, UnavailableError
            When no model can be loaded the way the configuration asks for. Nothing is changed then.
        """
        self._clear_candidates()
        return self._models.boot(base_model, sha256)

    def _clear_candidates(self, *but: Path) -> None:
        """What earlier runs left before the gate, on a full disk or at a crash: there is a newer one."""
        if self._staging.is_dir():
            for left in self._staging.iterdir():
                if left not in but:
                    _discard(left)

    def install_base(self, base_model: Path, reason: str = "first model") -> ServedModel:
        """Make the bundle's own model the champion, under a new version; raises ModelError as `boot`."""
        return self._models.install_base(base_model, reason)

    def base(self, reason: str) -> ServedModel:
        """Make the bundle's own model the champion again; RefusedError when it is not known where that is."""
        return self._models.base(reason)

    def unproven(self, champion: int) -> ServedModel | None:
        """The predecessor, loaded, of a champion whose probation the end of an earlier process cut short."""
        return self._models.unproven(champion)

    def open(self, version: int) -> ServedModel:
        """Load a version from the registry, verified and warmed up; EdgedError when it cannot serve."""
        return self._models.open(version)

    def first_model(self) -> Model | None:
        """The bundle's own model, loaded; None where it is not known where that is. ModelError as `boot`."""
        return self._models.first()

    def forget_trust(self) -> None:
        """Labels are judged anew, by what comes."""
        self.trust = LabelTrust.load(self._schema.task, None)
        self._registry.set_value(TRUST, None)

    # ---- a candidate -----------------------------------------------------------------------

    def consider(
        self, candidate: Candidate, champion: ServedModel, *, first: bool = False
    ) -> tuple[Verdict, ServedModel | None]:
        """Verify and judge a candidate; store it with its verdict.

        Returns the verdict and, when accepted, the loaded and warmed-up model, which is durable in
        the registry but not yet champion. `first` skips the comparison, not the verification.
        """
        folder = candidate.folder
        self._clear_candidates(folder, candidate.beside or folder)
        doing = "verification"
        try:
            model, seconds = within(self._config.timeout, doing, lambda: self._judging.verify(folder))
            doing = "judging"
            verdict, scale = within(
                self._config.timeout,
                doing,
                lambda: self._judging.evaluate(model, champion, first=first, contest=candidate.contest),
            )
            if candidate.source == "training":  # others say nothing about the labels
                verdict = self._review(verdict)
            verdict = self._judging.with_form(verdict, folder, (model, champion), scale, first=first)
            verdict = replace(verdict, numbers=verdict.numbers | {"latency_s": seconds})
            doing = "storing"
            record = self._store(candidate, champion, verdict, scale)
        except (EdgedError, OSError, ValueError, MemoryError) as problem:
            verdict = refuse(f"{doing} failed: {line_of(problem)}")
            self._rejected(candidate, verdict, None)
            _discard(folder)
            return verdict, None
        if not verdict.accepted:
            self._rejected(candidate, verdict, record)
            return verdict, None
        try:
            loaded = self._models.load(record.version)
        except (EdgedError, OSError, MemoryError) as problem:
            return self.withdraw(record.version, f"loading failed: {line_of(problem)}"), None
        return verdict, loaded

    def appraise(self, candidate: Candidate, champion: ServedModel) -> Verdict:
        """Verify and judge the candidate of a dry run, then throw it away."""
        folder = candidate.folder
        try:
            model, _ = within(self._config.timeout, "verification", lambda: self._judging.verify(folder))
            verdict, scale = within(
                self._config.timeout, "judging", lambda: self._judging.evaluate(model, champion)
            )
            verdict = self._judging.with_form(verdict, folder, (model, champion), scale, first=False)
        except (EdgedError, OSError, ValueError, MemoryError) as problem:
            return refuse(line_of(problem))
        finally:
            _discard(folder)
        return verdict

    def configure(self, config: GateConfig) -> None:
        """Judge by other rules from the next candidate on."""
        self._config = config
        self._models.timeout = config.timeout
        self._judging.configure(config)

    def withdraw(self, version: int, reason: str) -> Verdict:
        """An accepted candidate cannot take over after all; the verdict that says why."""
        verdict = refuse(reason)
        self.rejections += 1
        log.warning("candidate_withdrawn", version=version, reason=reason)
        try:
            self._registry.set_status(version, "rejected", verdict=verdict.as_dict())
        except StorageError as problem:
            log.warning("verdict_not_kept", version=version, problem=problem.line())
        return verdict

    def recall(
        self, versions: list[int], champion: ServedModel, window: Window
    ) -> tuple[Verdict, ServedModel] | None:
        """Try models of earlier regimes on rows `window` that nobody has learned from; the first that wins.

        They have learned from older data than the champion, so being as good is not enough: the win must be
        beyond chance, though several are tried.
        """
        if any(record.pinned for record in self._registry.records()):
            return None
        self._recalled = {v: m for v, m in self._recalled.items() if v in versions}
        scale = self._judging.scale(champion, window)
        known = {record.version for record in self._registry.records() if record.status not in BAD}
        for version in versions:
            if version not in known:
                continue
            try:
                served = self._recalled.get(version) or self.open(version)
            except EdgedError as problem:
                self._models.pass_over(version, problem)
                continue
            self._recalled[version] = served
            verdict = self._judging.recalled(served.model, champion, window, scale, len(versions))
            if verdict.accepted:
                return verdict, served
        return None

    def _review(self, verdict: Verdict) -> Verdict:
        """Refused where the labels that decided cannot be trusted."""
        if not self._config.suspect_labels:
            return verdict
        reviewed = self.trust.review(verdict)
        self._registry.set_value(TRUST, self.trust.dump())
        return reviewed

    def recommended_pause(self) -> dict[str, Any] | None:
        """Return why training should pause, and how long (`times` the labels of a run); or None."""
        times = self.trust.pause()
        if times is None:
            return None
        self._registry.set_value(TRUST, self.trust.dump())
        return {"reason": "labels", "verdicts": self.trust.suspicious, "times": times}

    def _store(
        self,
        candidate: Candidate,
        champion: ServedModel,
        verdict: Verdict,
        scale: NDArray[np.float32] | None,
    ) -> ModelRecord:
        folder = candidate.folder
        metrics: dict[str, Any] = {"loss_last": candidate.loss_last, **verdict.numbers}
        if scale is not None:
            metrics["scale"] = [float(v) for v in scale]
        for name in PROBE_FILES:  # they have done their work, and hold samples
            (folder / name).unlink()
        if verdict.form != INT8:
            model_in(folder, INT8).unlink(missing_ok=True)
        record = self._registry.add(
            folder,
            parent=champion.version,
            created=self._clock.now(),
            source=candidate.source,
            run=candidate.run,
            generation=candidate.generation,
            data=candidate.data() | ({"form": INT8} if verdict.form == INT8 else {}),
            metrics=metrics,
            verdict=verdict.as_dict(),
            status="candidate" if verdict.accepted else "rejected",
        )
        self._registry.prune(self._keep, protect={champion.version, record.version, *self._bank()})
        return record

    def _bank(self) -> list[int]:
        """Versions that serve again when their regime is back."""
        return self.regimes.bank() if self._recalls else []

    def _rejected(self, candidate: Candidate, verdict: Verdict, record: ModelRecord | None) -> None:
        self.rejections += 1
        log.info(
            "candidate_rejected",
            run=candidate.run,
            version=record.version if record else None,
            reasons=list(verdict.reasons),
        )

    # ---- the champion ----------------------------------------------------------------------

    def set_champion(self, served: ServedModel, reason: str) -> None:
        """Store an accepted model as the champion; call this before the swap.

        Raises
        ------
        StorageError
            When the pointer could not be published; the old champion stays.
        """
        self._models.point_to(served.version, reason, outgoing=None)
        self.promotions += 1

    def confirm(self, version: int) -> None:
        """Mark `version` as good after its probation."""
        self._registry.set_status(version, "good")

    def stand_down(self, failing: int, to: int, reason: str) -> None:
        """Store that `to` serves in place of a champion that failed.

        CorruptError when the files of `to` are damaged, StorageError when the pointer did not move.
        """
        if self._registry.champion() != to:
            self._models.point_to(to, reason, outgoing="rolled_back")
        elif any(record.version == failing for record in self._registry.records()):
            self._registry.set_status(failing, "rolled_back")
        self.rollbacks += 1

    def rollback(self, failing: int, reason: str, to: int | None = None) -> ServedModel:
        """Go back to `to`, or to the newest loadable model before the failing one, or to the bundle's own.

        Raises
        ------
        RefusedError
            When `to` is what is served already, or no other model can be loaded.
        """
        if to == failing:
            raise RefusedError(
                f"version {to} is serving already", where="registry", remedy="name another one"
            )
        served = self._models.before(failing) if to is None else self._models.first_of([to])
        if served is not None:
            self._models.point_to(served.version, reason, outgoing="rolled_back")
        elif to is None:
            served = self._models.base_instead(failing, reason)
        if served is not None:
            self.rollbacks += 1
            return served
        raise RefusedError(
            "no other model can be loaded",
            where=f"version {to}" if to is not None else "registry",
            remedy="`edged models CONFIG list` shows what is there",
        )


def _discard(folder: Path) -> None:
    """Remove what nobody will use; the next start tries again where the disk refuses."""
    if not folder.exists():
        return
    try:
        remove(folder)
    except StorageError as problem:
        log.warning("not_removed", path=str(folder), problem=problem.line())
