"""Models of the registry: candidates on their way in, which can serve, and which is the champion."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from edged.clock import Clock
from edged.config import Config
from edged.device.promotion.evaluator import GateEvaluation, line_of
from edged.domain.bundle_contents import MODEL, PARAMETERS, PROBE_FILES
from edged.domain.judging.expert_mix import Mix, StreamModel, mix_of
from edged.domain.judging.ridge_head import Learned
from edged.domain.judging.verdict import Verdict, refuse
from edged.domain.protocols import Model, ModelReader, ServedModel
from edged.domain.training.training_run import Candidate
from edged.errors import (
    ConfigError,
    CorruptError,
    EdgedError,
    ModelError,
    RefusedError,
    StorageError,
    UnavailableError,
)
from edged.host.waiting import within
from edged.logs import disk_may_refuse, get_logger
from edged.storage.files.atomic import remove
from edged.storage.models.records import ModelFigures, ModelRecord, Status
from edged.storage.models.registry import Registry

log = get_logger("edged.promote")

LOADING = "loading"  # the registry's value that tells which model was being loaded when the process died
BOOT_TRIES = 3
JUDGED = ("training", "weights", "bundle_install")  # sources of models that have passed the gate


class ModelStore:
    """Stores candidates with their verdicts, opens versions of the registry, and moves its pointer.

    `reader` loads models; a daemon's sleeps a little between pieces of work, so that the serving thread
    answers in between. `mix` is how much their experts count.

    Attributes
    ----------
    unusable
        Versions that could not be loaded.
    rejections, promotions, rollbacks
        How often each has happened since the start.
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
        self._base: Path | None = None
        self._base_hash: str | None = None
        self.unusable: list[int] = []
        self.rejections = self.promotions = self.rollbacks = 0

    # ---- at start --------------------------------------------------------------------------

    def boot(self, base_model: Path, sha256: str | None = None, *, random: bool = False) -> ServedModel:
        """The model to serve at start: champion, previous, an older good one, else the bundle's own.

        With `sha256`, its hash in hexadecimal, the bundle's own is not used where it is another file. Its
        weights are `random` where nothing was trained yet.

        Raises ModelError when not even the bundle's base model can be loaded; ConfigError or UnavailableError
        when no model can be loaded the way the configuration asks for. Nothing is changed then.
        """
        self._clear_candidates()
        self._base, self._base_hash, self._random = base_model, sha256, random
        champion = self._registry.champion()
        for version in self._registry.best_loadable():
            try:
                served = self._open_at_boot(version)
            except (ConfigError, UnavailableError):
                raise  # serving is set up wrongly; no model is to blame, and none must be dethroned for it
            except EdgedError as problem:
                self._pass_over(version, problem)
                continue
            if version != champion:
                self._dethrone(version)
            return served
        return self.install_base(base_model)

    def _open_at_boot(self, version: int) -> ServedModel:
        """Load a version; one that ended the process several times while it was loaded is not tried again."""
        kept = self._registry.get_value(LOADING) or {}
        tries = kept["tries"] if kept.get("version") == version else 0
        if tries >= BOOT_TRIES:
            raise ModelError(
                f"the process died {tries} times while it was loaded", where=f"version {version}"
            )
        self._record_loading({"version": version, "tries": tries + 1})
        try:
            return self._load(version)
        finally:
            self._record_loading(None)

    def _record_loading(self, value: dict[str, int] | None) -> None:
        with disk_may_refuse(log, "loading_not_noted"):
            self._registry.set_value(LOADING, value)

    def _dethrone(self, successor: int) -> None:
        """The champion cannot be loaded; on a full disk the next start finds that out again."""
        with disk_may_refuse(log, "champion_not_replaced", version=successor):
            self._point_to(successor, "the champion could not be loaded", outgoing="rolled_back")

    def install_base(self, base_model: Path, reason: str = "first model") -> ServedModel:
        """Make the bundle's own model the champion, under a new version.

        Raises ModelError when it cannot be loaded, or is not the file that was announced.
        """
        try:
            content = base_model.read_bytes()
        except OSError as problem:
            raise ModelError(f"cannot be read: {problem.strerror}", where=str(base_model)) from problem
        if self._base_hash is not None and hashlib.sha256(content).hexdigest() != self._base_hash:
            raise ModelError(
                "the bundle's own model is damaged", where=str(base_model), remedy="install the bundle again"
            )
        staging = self._staging / ".staging-bundle"
        staging.mkdir(parents=True, exist_ok=True)
        if base_model.with_name(PARAMETERS).is_file():
            from edged.engines.onnx.fields import (
                whole_model,  # few bundles keep parameters in such a file
            )

            content = whole_model(base_model)
        (staging / MODEL).write_bytes(content)
        record = self._registry.add(staging, parent=None, created=self._clock.now(), source="bundle")
        served = self.open(record.version)
        self._point_to(record.version, reason, outgoing="rolled_back")
        return served

    def reinstall_base(self, reason: str) -> ServedModel:
        """Make the bundle's own model the champion again; RefusedError when it is not known where that is."""
        if self._base is None:
            raise RefusedError("no bundle was opened", where="registry")
        return self.install_base(self._base, reason)

    def unproven(self, champion: int) -> ServedModel | None:
        """The predecessor, loaded, of a champion whose probation the end of an earlier process cut short."""
        reign = self._registry.reign()
        if reign is None or reign.version != champion or reign.outgoing == "rolled_back":
            return None
        record = self._registry.get(champion)
        if reign.previous is None or record.proven or record.source not in JUDGED:
            return None
        try:
            return self.open(reign.previous)
        except EdgedError as problem:
            log.warning("previous_unusable", version=reign.previous, problem=problem.line())
            return None

    def first_model(self) -> Model | None:
        """The bundle's own model, loaded; None where it is not known where that is.

        Raises ModelError when it cannot be loaded.
        """
        return None if self._base is None else self._reader.load(self._base)

    # ---- the champion ----------------------------------------------------------------------

    def set_champion(self, version: int, reason: str) -> None:
        """Store an accepted model as the champion; call this before the swap.

        Raises StorageError when the pointer could not be published; the old champion stays.
        """
        self._point_to(version, reason, outgoing=None)
        self.promotions += 1

    def _point_to(self, version: int, reason: str, *, outgoing: Status | None) -> None:
        """Move the champion pointer; what counts after an error is where it points then."""
        try:
            self._registry.set_champion(version, reason, self._clock.now(), outgoing=outgoing)
        except CorruptError:
            raise
        except StorageError as problem:
            if self._registry.champion() != version:
                raise
            log.warning("champion_moved_with_an_error", version=version, problem=problem.line())

    def confirm(self, version: int) -> None:
        """Mark a version as good after its probation; if the disk refuses, the next start repeats that."""
        with disk_may_refuse(log, "confirmation_not_kept", version=version):
            self._registry.set_status(version, "good")

    def stand_down(self, failing: int, to: int, reason: str) -> None:
        """Store that `to` serves in place of a champion that failed.

        CorruptError when the files of `to` are damaged, StorageError when the pointer did not move.
        """
        if self._registry.champion() != to:
            self._point_to(to, reason, outgoing="rolled_back")
        elif any(record.version == failing for record in self._registry.records()):
            self._registry.set_status(failing, "rolled_back")
        self.rollbacks += 1

    def roll_back(self, failing: int, reason: str, to: int | None = None) -> ServedModel:
        """Go back to `to`, or to the newest loadable model before the failing one, or to the bundle's own.

        Raises RefusedError when `to` is what is served already, or no other model can be loaded.
        """
        if to == failing:
            raise RefusedError(
                f"version {to} is serving already", where="registry", remedy="name another one"
            )
        others = [v for v in self._registry.best_loadable() if v != failing] if to is None else [to]
        served = self._first_of(others)
        if served is not None:
            self._point_to(served.version, reason, outgoing="rolled_back")
        elif to is None:
            served = self._base_instead(failing, reason)
        if served is None:
            raise RefusedError(
                "no other model can be loaded",
                where=f"version {to}" if to is not None else "registry",
                remedy="`edged models CONFIG list` shows what is there",
            )
        self.rollbacks += 1
        return served

    def _first_of(self, versions: list[int]) -> ServedModel | None:
        """The first of these that can be loaded."""
        for version in versions:
            try:
                return self._load(version)
            except EdgedError as problem:
                self._pass_over(version, problem)
        return None

    def _base_instead(self, failing: int, reason: str) -> ServedModel | None:
        """The bundle's own model as champion, unless it is the one that fails or cannot be loaded."""
        if self._base is None or self._registry.get(failing).source == "bundle":
            return None
        try:
            return self.install_base(self._base, reason)
        except (ModelError, OSError) as problem:
            log.error("base_model_unusable", problem=line_of(problem))
            return None

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
