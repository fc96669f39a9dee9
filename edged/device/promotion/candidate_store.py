"""Candidates on their way into the registry, and the models of the registry on their way into service."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edged.clock import Clock
from edged.config import Config, GateConfig
from edged.device.promotion.evaluator import GateEvaluation, line_of
from edged.domain.judging.expert_mix import Mix, StreamModel, mix_of
from edged.domain.judging.ridge_head import Learned
from edged.domain.judging.verdict import Verdict, refuse
from edged.domain.model_files import PROBE_FILES
from edged.domain.protocols import ModelReader, ServedModel
from edged.domain.training.training_run import Candidate
from edged.errors import EdgedError, ModelError
from edged.host.waiting import within
from edged.logs import disk_may_refuse, get_logger
from edged.storage.files.atomic import remove
from edged.storage.models.records import ModelFigures, ModelRecord
from edged.storage.models.registry import Registry

log = get_logger("edged.promote")


class CandidateStore:
    """Stores candidates with their verdicts, and opens versions of the registry.

    `reader` loads models; a daemon's sleeps a little between pieces of work, so that the serving thread
    answers in between. `mix` is how much their experts count.

    Attributes
    ----------
    unusable
        Versions that could not be loaded.
    rejections
        How many candidates were rejected since the start.
    """

    def __init__(
        self,
        config: Config,
        registry: Registry,
        reader: ModelReader,
        clock: Clock,
        mix: Mix | None = None,
    ) -> None:
        self._registry = registry
        self._schema = config.stream.to_schema()
        self._reader = reader
        self._mix = mix or mix_of(self._schema)
        self._clock = clock
        self._keep = config.storage.constants.keep_models
        self._staging = config.storage.dir / "candidates"
        self._timeout = config.gate.constants.timeout
        self._random = False
        self.unusable: list[int] = []
        self.rejections = 0

    def configure(self, config: GateConfig) -> None:
        """Allow another time for loading from the next model on."""
        self._timeout = config.constants.timeout

    # ---- candidates ------------------------------------------------------------------------

    def add(self, evaluation: GateEvaluation) -> tuple[Verdict, ServedModel | None]:
        """Store a candidate with its verdict; one that could not be evaluated is removed.

        Returns the verdict and, when accepted, the loaded and warmed-up model, which is durable in
        the registry but not yet champion. A candidate that cannot be stored or loaded is rejected.
        """
        candidate, verdict = evaluation.candidate, evaluation.verdict
        self._clear_candidates(candidate.folder)
        record: ModelRecord | None = None
        if not evaluation.failed:
            try:
                record = self._store(evaluation)
            except (EdgedError, OSError, ValueError, MemoryError) as problem:
                verdict = refuse(f"storing failed: {line_of(problem)}")
        if record is None:
            discard(candidate.folder)
        if record is None or not verdict.accepted:
            self.rejections += 1
            version, reasons = record.version if record else None, list(verdict.reasons)
            log.info("candidate_rejected", run=candidate.run, version=version, reasons=reasons)
            return verdict, None
        try:
            return verdict, self._load(record.version)
        except (EdgedError, OSError, MemoryError) as problem:
            return self.withdraw(record.version, f"loading failed: {line_of(problem)}"), None

    def _store(self, evaluation: GateEvaluation) -> ModelRecord:
        candidate, verdict, scale = evaluation.candidate, evaluation.verdict, evaluation.scale
        folder, parent = candidate.folder, evaluation.champion.version
        scales = None if scale is None else tuple(scale.tolist())
        for name in PROBE_FILES:  # they have done their work, and hold samples
            (folder / name).unlink()
        return self._registry.add(
            folder,
            parent=parent,
            created=self._clock.now(),
            source=candidate.source,
            run=candidate.run,
            generation=candidate.generation,
            data=candidate.data(),
            metrics=ModelFigures(candidate.loss_last, verdict.numbers, scales),
            verdict=verdict,
            status="candidate" if verdict.accepted else "rejected",
        )

    def withdraw(self, version: int, reason: str) -> Verdict:
        """An accepted candidate cannot take over after all; the verdict that says why."""
        verdict = refuse(reason)
        self.rejections += 1
        log.warning("candidate_withdrawn", version=version, reason=reason)
        with disk_may_refuse(log, "verdict_not_kept", version=version):
            self._registry.set_status(version, "rejected", verdict=verdict)
        return verdict

    def record_judged(self, candidate: Candidate) -> None:
        """Record that the verdict on a candidate took effect, so that no restart judges it again.

        Models above the number that is kept go now, as the new one serves already.
        """
        if candidate.source == "training":
            with disk_may_refuse(log, "verdict_not_kept", run=candidate.run):
                self._registry.record_judged(candidate.run)
        with disk_may_refuse(log, "models_not_pruned"):
            self._prune()

    def _prune(self) -> None:
        newest = max((record.version for record in self._registry.records()), default=0)
        self._registry.prune(self._keep, protect={newest})

    def _clear_candidates(self, but: Path | None = None) -> None:
        """Remove what earlier runs left before the gate, on a full disk or at a crash."""
        if self._staging.is_dir():
            for left in self._staging.iterdir():
                if left != but:
                    discard(left)

    # ---- stored models ---------------------------------------------------------------------

    @property
    def pinned(self) -> list[int]:
        """The version that is pinned, if one is."""
        return self._registry.pinned()

    def pin(self, version: int) -> None:
        """Pin this version and no other."""
        self._registry.unpin_all(but=version)
        self._registry.pin(version)

    def open(self, version: int) -> ServedModel:
        """Load a version from the registry, verified and warmed up.

        Raises EdgedError when its files are damaged or it does not answer.
        """
        record = self._registry.get(version)
        origin = record.data
        self._reader.breathe()
        path = self._registry.verify(version)
        self._reader.breathe()
        random = self._random and record.source == "bundle"
        learned = Learned.of(origin.consumed, origin.classes)
        model = StreamModel.of(self._reader.load(path), self._mix, random=random, learned=learned)
        out = model.predict(np.zeros((1, self._schema.width), np.float32))
        if out.shape[1] not in self._schema.output_widths or not np.isfinite(out).all():
            raise ModelError(f"it predicts {out.tolist()} for zeros", where=f"version {version}")
        self._reader.breathe()
        scale = record.metrics.scale
        return ServedModel(version, model, None if scale is None else np.asarray(scale, np.float32))

    def _load(self, version: int) -> ServedModel:
        """`open`, within the time that is allowed."""
        return within(self._timeout, "loading", lambda: self.open(version))

    def _pass_over(self, version: int, problem: EdgedError) -> None:
        """Note that a version cannot be loaded."""
        log.error("model_unusable", version=version, problem=problem.line())
        if version not in self.unusable:
            self.unusable.append(version)


def discard(folder: Path) -> None:
    """Remove an unused folder; the next start tries again if the disk refuses."""
    if not folder.exists():
        return
    with disk_may_refuse(log, "not_removed", path=str(folder)):
        remove(folder)
