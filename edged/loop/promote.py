"""Promotion: candidate → gate → registry → champion, and the way back."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.comparison import Comparison
from edged.domain.gate import Evidence, GateRules, Verdict, judge_recalled, refuse
from edged.domain.protocols import Served
from edged.domain.regimes import Regimes
from edged.domain.trust import LabelTrust
from edged.errors import (
    ConfigError,
    CorruptError,
    EdgedError,
    ModelError,
    RefusedError,
    StorageError,
    UnavailableError,
)
from edged.host.bounded import within
from edged.logs import get_logger
from edged.modelfiles import FLOAT32, INT8, file_name, model_in
from edged.storage.bundles import CHECKPOINT_DATA, PARAMETERS
from edged.storage.candidates import PROBE_FILES, Probing, verify_candidate, verify_quantised
from edged.storage.files import remove
from edged.storage.model_records import BAD

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from edged.clock import Clock
    from edged.config import GateConfig
    from edged.domain.protocols import Holdout, Model
    from edged.domain.sample import Window
    from edged.domain.schema import Schema
    from edged.storage.model_records import ModelRecord, Status
    from edged.storage.registry import Registry

log = get_logger("edged.promote")

LOADING = "loading"  # the registry's value that tells which model was being loaded when the process died
BOOT_TRIES = 3
UNIT_ROWS = 1000  # newest samples by which the errors of a reconstruction are weighed
TRUST = "label_trust"
JUDGED = ("training", "weights", "bundle_install")  # sources of models that have passed the gate
DATA = ("first_offset", "last_offset", "samples")


class Promoter:
    """Judges candidates, keeps the registry, and knows which model may be served.

    `breathe` is called between the pieces of work that hold the interpreter's lock: a daemon that sleeps
    a little in it lets its serving thread answer in between, so that no prediction waits for them all.
    With `int8` models are served in their quantised form, where they have one that passed the gate too.
    """

    def __init__(
        self,
        *,
        config: GateConfig,
        schema: Schema,
        registry: Registry,
        holdout: Holdout,
        load_model: Callable[[Path], Model],
        clock: Clock,
        keep_models: int,
        staging: Path,
        breathe: Callable[[], None] = lambda: None,
        regimes: Regimes | None = None,
        int8: bool = False,
    ) -> None:
        self.regimes = Regimes() if regimes is None else regimes
        self._config = config
        self._comparison = Comparison(schema, holdout, gate_rules(config), self.regimes, breathe)
        self._schema = schema
        self._registry = registry
        self._holdout = holdout
        self._load_model = load_model
        self._clock = clock
        self._keep = keep_models
        self._staging = staging
        self._breathe = breathe
        self.trust = LabelTrust.load(schema.task, registry.get_value(TRUST))
        self._int8 = int8
        self._base: Path | None = None
        self._base_hash: str | None = None
        self._recalled: dict[int, Served] = {}
        self.bank: Callable[[], list[int]] = list
        self.promotions = 0
        self.rejections = 0
        self.rollbacks = 0
        self.unusable: list[int] = []

    # ---- at start --------------------------------------------------------------------------

    def boot(self, base_model: Path, sha256: str | None = None) -> Served:
        """The model to serve at start: champion, previous, an older good one, else the bundle's own.

        With `sha256`, its hash in hexadecimal, the bundle's own is not used where it is another file.

        Raises
        ------
        ModelError
            When not even the bundle's base model can be loaded.
        ConfigError, UnavailableError
            When no model can be loaded the way the configuration asks for. Nothing is changed then.
        """
        self._base, self._base_hash = base_model, sha256
        self._clear_candidates()
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

    def _pass_over(self, version: int, problem: EdgedError) -> None:
        log.error("model_unusable", version=version, problem=problem.line())
        if version not in self.unusable:
            self.unusable.append(version)

    def _clear_candidates(self, *but: Path) -> None:
        """What earlier runs left before the gate, on a full disk or at a crash: there is a newer one."""
        if self._staging.is_dir():
            for left in self._staging.iterdir():
                if left not in but:
                    _discard(left)

    def _open_at_boot(self, version: int) -> Served:
        """Load a version; one that ended the process several times while it was loaded is not tried again."""
        kept = self._registry.get_value(LOADING) or {}
        tries = kept["tries"] if kept.get("version") == version else 0
        if tries >= BOOT_TRIES:
            raise ModelError(
                f"the process died {tries} times while it was loaded", where=f"version {version}"
            )
        self._note_loading({"version": version, "tries": tries + 1})
        try:
            return within(self._config.timeout, "loading", lambda: self.open(version))
        finally:
            self._note_loading(None)

    def _note_loading(self, value: dict[str, int] | None) -> None:
        try:
            self._registry.set_value(LOADING, value)
        except StorageError as problem:
            log.warning("loading_not_noted", problem=problem.line())

    def _dethrone(self, successor: int) -> None:
        """The champion cannot be loaded; on a full disk the next start finds that out again."""
        try:
            self._point_to(successor, "the champion could not be loaded", outgoing="rolled_back")
        except StorageError as problem:
            log.warning("champion_not_replaced", version=successor, problem=problem.line())

    def install_base(self, base_model: Path, reason: str = "first model") -> Served:
        """Make the bundle's own model the champion, under a new version.

        Raises
        ------
        ModelError
            When it cannot be loaded, or is not the file that was announced.
        """
        try:
            content = base_model.read_bytes()
        except OSError as problem:
            raise ModelError(f"cannot be read: {problem.strerror}", where=str(base_model)) from problem
        if self._base_hash is not None and hashlib.sha256(content).hexdigest() != self._base_hash:
            raise ModelError(
                "the bundle's own model is damaged", where=str(base_model), remedy="install the bundle anew"
            )
        staging = self._staging / ".staging-bundle"
        staging.mkdir(parents=True, exist_ok=True)
        if any(base_model.with_name(name).is_file() for name in (PARAMETERS, CHECKPOINT_DATA)):
            from edged.engines.whole_model import whole_model  # few bundles keep parameters in such a file

            content = whole_model(base_model)
        (staging / file_name(base_model.suffix)).write_bytes(content)
        record = self._registry.add(staging, parent=None, created=self._clock.now(), source="bundle")
        served = self.open(record.version)
        self._point_to(record.version, reason, outgoing="rolled_back")
        return served

    def base(self, reason: str) -> Served:
        """Make the bundle's own model the champion again, under a new version.

        Raises
        ------
        RefusedError
            When it is not known where that is.
        """
        if self._base is None:
            raise RefusedError("no bundle was opened", where="registry")
        return self.install_base(self._base, reason)

    def forget_trust(self) -> None:
        """Labels are judged anew, by what comes."""
        self.trust = LabelTrust.load(self._schema.task, None)
        self._registry.set_value(TRUST, None)

    def unproven(self, champion: int) -> Served | None:
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

    def open(self, version: int) -> Served:
        """Load a version from the registry, verified and warmed up.

        Raises
        ------
        EdgedError
            When its files are damaged or it does not answer.
        """
        record = self._registry.get(version)
        self._breathe()
        form = INT8 if self._int8 and record.data.get("form") == INT8 else FLOAT32
        path = self._registry.verify(version, form)
        self._breathe()
        model = self._load_model(path)
        out = model.predict(np.zeros((1, self._schema.width), np.float32))
        if out.shape[1] not in self._widths() or not np.isfinite(out).all():
            raise ModelError(f"it answers {out.tolist()} to zeros", where=f"version {version}")
        self._breathe()
        scale = record.metrics.get("scale")
        return Served(version, model, None if scale is None else np.asarray(scale, np.float32), form)

    # ---- a candidate -----------------------------------------------------------------------

    def consider(
        self, result: dict[str, Any], champion: Served, *, first: bool = False
    ) -> tuple[Verdict, Served | None]:
        """Verify and judge the candidate of a training run; store it with its verdict.

        Returns the verdict and, when accepted, the loaded and warmed-up model, which is durable in
        the registry but not yet champion. `first` skips the comparison, not the verification.
        """
        folder = Path(result["candidate"])
        self._clear_candidates(folder, Path(result.get("beside", folder)))
        doing = "verification"
        try:
            model, seconds = within(self._config.timeout, doing, lambda: self._verify(folder))
            doing = "judging"
            verdict, scale = within(
                self._config.timeout,
                doing,
                lambda: self._judge(model, champion, first=first, contest=result.get("contest")),
            )
            if result.get("source", "training") == "training":  # others say nothing about the labels
                verdict = self._review(verdict)
            verdict = self._with_form(verdict, folder, (model, champion), scale, first=first)
            verdict = replace(verdict, numbers=verdict.numbers | {"latency_s": seconds})
            doing = "storing"
            record = self._store(folder, result, champion, verdict, scale)
        except (EdgedError, OSError, ValueError, MemoryError) as problem:
            verdict = refuse(f"{doing} failed: {_line(problem)}")
            self._rejected(result, verdict, None)
            _discard(folder)
            return verdict, None
        if not verdict.accepted:
            self._rejected(result, verdict, record)
            return verdict, None
        try:
            loaded = within(self._config.timeout, "loading", lambda: self.open(record.version))
        except (EdgedError, OSError, MemoryError) as problem:
            return self.withdraw(record.version, f"loading failed: {_line(problem)}"), None
        return verdict, loaded

    def appraise(self, result: dict[str, Any], champion: Served) -> Verdict:
        """Verify and judge the candidate of a dry run, then throw it away."""
        folder = Path(result["candidate"])
        try:
            model, _ = within(self._config.timeout, "verification", lambda: self._verify(folder))
            verdict, scale = within(
                self._config.timeout,
                "judging",
                lambda: self._judge(model, champion, first=False, contest=None),
            )
            verdict = self._with_form(verdict, folder, (model, champion), scale, first=False)
        except (EdgedError, OSError, ValueError, MemoryError) as problem:
            return refuse(_line(problem))
        finally:
            _discard(folder)
        return verdict

    def configure(self, config: GateConfig) -> None:
        """Judge by other rules from the next candidate on."""
        self._config = config
        self._comparison.rules = gate_rules(config)

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

    def recall(self, versions: list[int], champion: Served, window: Window) -> tuple[Verdict, Served] | None:
        """Try models of earlier regimes on rows `window` that nobody has learned from; the first that wins.

        They have learned from older data than the champion, so being as good is not enough: the win must be
        beyond chance, though several are tried.
        """
        if any(record.pinned for record in self._registry.records()):
            return None
        self._recalled = {v: m for v, m in self._recalled.items() if v in versions}
        scale = self._scale(champion, window)
        known = {record.version for record in self._registry.records() if record.status not in BAD}
        for version in versions:
            if version not in known:
                continue
            try:
                served = self._recalled.get(version) or self.open(version)
            except EdgedError as problem:
                self._pass_over(version, problem)
                continue
            self._recalled[version] = served
            evidence = self._comparison.evidence(served.model, champion.model, window, scale)
            verdict = judge_recalled(self._schema.task, evidence, len(versions))
            if verdict.accepted:
                return verdict, served
        return None

    def _verify(self, folder: Path) -> tuple[Model, float]:
        """Whole, loadable, with the trainer's own outputs, and fast enough."""
        return verify_candidate(folder, self._load_model, self._probing(), self._breathe)

    def _probing(self) -> Probing:
        return Probing(self._schema.width, self._widths(), self._config.tolerance, self._config.latency)

    def _with_form(
        self,
        verdict: Verdict,
        folder: Path,
        models: tuple[Model, Served],
        scale: NDArray[np.float32] | None,
        *,
        first: bool,
    ) -> Verdict:
        """The verdict, and where models are served as int8, in which form this one will be."""
        if not self._int8:
            return verdict
        from edged.domain.quantised import choose_form, served_as_float32

        def load() -> tuple[Model, float] | None:
            return verify_quantised(folder, self._load_model, self._probing(), self._breathe)

        def choose() -> Verdict:
            recent = self._holdout.holdout_window(self._config.recent)
            both = models[0], models[1].model
            return choose_form(verdict, load, self._comparison, both, recent, scale, first=first)

        try:
            return within(self._config.timeout, "judging the quantised form", choose)
        except (EdgedError, OSError, ValueError, MemoryError) as problem:
            return served_as_float32(verdict, _line(problem))

    def _widths(self) -> tuple[int, ...]:
        """Output widths that fit the stream: two classes may share one logit."""
        return (1, 2) if len(self._schema.classes) == 2 else (self._schema.outputs,)

    def _judge(
        self, model: Model, champion: Served, *, first: bool, contest: dict[str, list[float]] | None
    ) -> tuple[Verdict, NDArray[np.float32] | None]:
        recent = self._holdout.holdout_window(self._config.recent)
        self._breathe()
        scale = self._scale(champion, recent)
        if first:
            return Verdict(True, ("first model trained for this stream",)), scale
        pinned = [record.version for record in self._registry.records() if record.pinned]
        if pinned:
            return refuse(f"version {pinned[0]} is pinned"), scale
        evidence = Evidence(**{name: np.asarray(of) for name, of in contest.items()}) if contest else None
        return self._comparison.judge(model, champion.model, recent, scale, evidence), scale

    def _scale(self, champion: Served, recent: Window) -> NDArray[np.float32] | None:
        """What weighs errors; fixed with the first model for reconstructions: scores stay comparable."""
        if not self._schema.labels_itself:
            return self._comparison.scale(recent)
        if champion.scale is not None:
            return champion.scale
        return self._comparison.scale(self._holdout.training_window(0, UNIT_ROWS))

    def _review(self, verdict: Verdict) -> Verdict:
        """Refused where the labels that decided cannot be trusted."""
        if not self._config.suspect_labels:
            return verdict
        reviewed = self.trust.review(verdict)
        self._registry.set_value(TRUST, self.trust.dump())
        return reviewed

    def resting(self) -> dict[str, Any] | None:
        """After a verdict: why and how long (`times` the labels of a run) training should pause, or None."""
        times = self.trust.pause()
        if times is None:
            return None
        self._registry.set_value(TRUST, self.trust.dump())
        return {"reason": "labels", "verdicts": self.trust.suspicious, "times": times}

    def _store(
        self,
        folder: Path,
        result: dict[str, Any],
        champion: Served,
        verdict: Verdict,
        scale: NDArray[np.float32] | None,
    ) -> ModelRecord:
        metrics: dict[str, Any] = {"loss_last": result["loss_last"], **verdict.numbers}
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
            source=result.get("source", "training"),
            run=result["run"],
            generation=result["generation"],
            data={
                **{k: result[k] for k in (*DATA, *result.get("told", ()), "bundle") if k in result},
                **({"form": INT8} if verdict.form == INT8 else {}),
            },
            metrics=metrics,
            verdict=verdict.as_dict(),
            status="candidate" if verdict.accepted else "rejected",
        )
        self._registry.prune(self._keep, protect={champion.version, record.version, *self.bank()})
        return record

    def _rejected(self, result: dict[str, Any], verdict: Verdict, record: ModelRecord | None) -> None:
        self.rejections += 1
        log.info(
            "candidate_rejected",
            run=result["run"],
            version=record.version if record else None,
            reasons=list(verdict.reasons),
        )

    # ---- the champion ----------------------------------------------------------------------

    def crown(self, served: Served, reason: str) -> None:
        """Make an accepted model the durable champion; call before it is swapped in.

        Raises
        ------
        StorageError
            When the pointer could not be published; the old champion stays.
        """
        self._point_to(served.version, reason, outgoing=None)
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
        """Probation passed."""
        self._registry.set_status(version, "good")

    def stand_down(self, failing: int, to: int, reason: str) -> None:
        """Make durable that `to` serves in the place of a champion that failed.

        CorruptError when the files of `to` are damaged, StorageError when the pointer did not move.
        """
        if self._registry.champion() != to:
            self._point_to(to, reason, outgoing="rolled_back")
        elif any(record.version == failing for record in self._registry.records()):
            self._registry.set_status(failing, "rolled_back")
        self.rollbacks += 1

    def rollback(self, failing: int, reason: str, to: int | None = None) -> Served:
        """Go back to `to`, or to the newest loadable model before the failing one, or to the bundle's own.

        Raises
        ------
        RefusedError
            When `to` is what is served already, or no other model can be loaded.
        """
        if to == failing:
            raise RefusedError(f"version {to} is served already", where="registry", remedy="name another one")
        choices = [to] if to is not None else [v for v in self._registry.best_loadable() if v != failing]
        for version in choices:
            try:
                served = within(self._config.timeout, "loading", lambda: self.open(version))  # noqa: B023
            except EdgedError as problem:
                self._pass_over(version, problem)
                continue
            self._point_to(version, reason, outgoing="rolled_back")
            self.rollbacks += 1
            return served
        if to is None and self._base is not None and self._registry.get(failing).source != "bundle":
            try:
                served = self.install_base(self._base, reason)
            except (ModelError, OSError) as problem:
                log.error("base_model_unusable", problem=_line(problem))
            else:
                self.rollbacks += 1
                return served
        raise RefusedError(
            "no other model can be loaded",
            where=f"version {to}" if to is not None else "registry",
            remedy="`edged models CONFIG list` shows what is there",
        )


def gate_rules(config: GateConfig) -> GateRules:
    """The configured rules."""
    return GateRules(config.min_gain, config.max_regret, config.min_holdout, config.significance)


def _line(problem: Exception) -> str:
    if isinstance(problem, EdgedError):
        return problem.line()
    return " ".join(str(problem).split()) or type(problem).__name__


def _discard(folder: Path) -> None:
    """Remove what nobody will use; the next start tries again where the disk refuses."""
    if not folder.exists():
        return
    try:
        remove(folder)
    except StorageError as problem:
        log.warning("not_removed", path=str(folder), problem=problem.line())
