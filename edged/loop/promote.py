"""Promotion: candidate → gate → registry → champion, and the way back."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from edged.domain.gate import Evidence, GateRules, Retained, Verdict, judge, judge_recalled, refuse
from edged.domain.outputs import answers, errors, unit_scale
from edged.domain.protocols import Served
from edged.domain.regimes import Regimes, elsewhere
from edged.errors import ConfigError, EdgedError, ModelError, RefusedError, StorageError, UnavailableError
from edged.logs import get_logger
from edged.storage.files import remove, verify_directory
from edged.storage.model_records import BAD

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from edged.clock import Clock
    from edged.config import GateConfig
    from edged.domain.protocols import Model
    from edged.domain.sample import Window
    from edged.domain.schema import Schema
    from edged.storage.registry import ModelRecord, Registry

log = get_logger("edged.promote")

LATENCY_RUNS = 20
RETAINED = 200  # holdout samples of an earlier regime that are asked at most
PROBE_FILES = ("probe_input.npy", "probe_output.npy")


class Holdout(Protocol):
    """Labelled samples that were never trained on."""

    def holdout_window(self, limit: int, *, before_seq: int | None = None) -> Window:
        """The newest ones."""

    def older_holdout(self, limit: int, before_seq: int, seed: int, *, after_seq: int = 0) -> Window:
        """A sample of those between two positions."""


class Promoter:
    """Judges candidates, keeps the registry, and knows which model may be served.

    `breathe` is called between the pieces of work that hold the interpreter's lock: a daemon that sleeps
    a little in it lets its serving thread answer in between, so that no prediction waits for them all.
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
    ) -> None:
        self.regimes = Regimes() if regimes is None else regimes
        self._config = config
        self._schema = schema
        self._registry = registry
        self._holdout = holdout
        self._load_model = load_model
        self._clock = clock
        self._keep = keep_models
        self._staging = staging
        self._breathe = breathe
        self._recalled: dict[int, Served] = {}
        self.bank: Callable[[], list[int]] = list
        self.promotions = 0
        self.rejections = 0
        self.rollbacks = 0

    # ---- at start --------------------------------------------------------------------------

    def boot(self, base_model: Path) -> Served:
        """The model to serve at start: champion, previous, an older good one, else the bundle's own.

        Raises
        ------
        ModelError
            When not even the bundle's base model can be loaded.
        ConfigError, UnavailableError
            When no model can be loaded the way the configuration asks for. Nothing is changed then.
        """
        self._clear_candidates()
        champion = self._registry.champion()
        for version in self._registry.best_loadable():
            try:
                served = self.open(version)
            except (ConfigError, UnavailableError):
                raise  # serving is set up wrongly; no model is to blame, and none must be dethroned for it
            except EdgedError as problem:
                log.error("model_unusable", version=version, problem=problem.line())
                continue
            if version != champion:
                self._registry.set_champion(version, "the champion could not be loaded", self._clock.now())
            return served
        return self._install_base(base_model)

    def _clear_candidates(self) -> None:
        """What an earlier process left before the gate: the next run makes a newer one."""
        if self._staging.is_dir():
            for left in self._staging.iterdir():
                remove(left)

    def _install_base(self, base_model: Path) -> Served:
        staging = self._staging / ".staging-bundle"
        staging.mkdir(parents=True, exist_ok=True)
        (staging / "model.onnx").write_bytes(base_model.read_bytes())
        record = self._registry.add(staging, parent=None, created=self._clock.now(), source="bundle")
        self._registry.set_champion(record.version, "first model", self._clock.now())
        return self.open(record.version)

    def open(self, version: int) -> Served:
        """Load a version from the registry, verified and warmed up.

        Raises
        ------
        EdgedError
            When its files are damaged or it does not answer.
        """
        record = self._registry.get(version)
        self._breathe()
        path = self._registry.verify(version)
        self._breathe()
        model = self._load_model(path)
        model.predict(np.zeros((1, self._schema.width), np.float32))
        self._breathe()
        scale = record.metrics.get("scale")
        return Served(version, model, None if scale is None else np.asarray(scale, np.float32))

    # ---- a candidate -----------------------------------------------------------------------

    def consider(
        self, result: dict[str, Any], champion: Served, *, first: bool = False
    ) -> tuple[Verdict, Served | None]:
        """Verify and judge the candidate of a training run; store it with its verdict.

        Returns the verdict and, when accepted, the loaded and warmed-up model, which is durable in
        the registry but not yet champion. `first` skips the comparison, not the verification.
        """
        folder = Path(result["candidate"])
        try:
            model, seconds = self._verify(folder)
        except (EdgedError, OSError) as problem:
            what = problem.line() if isinstance(problem, EdgedError) else str(problem)
            verdict: Verdict = refuse(f"verification failed: {what}")
            self._rejected(result, verdict, None)
            if folder.exists():
                remove(folder)
            return verdict, None
        verdict, scale = self._judge(model, champion, first=first)
        verdict = replace(verdict, numbers=verdict.numbers | {"latency_s": seconds})
        record = self._store(folder, result, champion, verdict, scale)
        if not verdict.accepted:
            self._rejected(result, verdict, record)
            return verdict, None
        loaded = self.open(record.version)
        return verdict, loaded

    def recall(self, versions: list[int], champion: Served, window: Window) -> tuple[Verdict, Served] | None:
        """Try models of earlier regimes on rows `window` that nobody has learned from; the first that wins.

        They have learned from older data than the champion, so being as good is not enough: the win must be
        beyond chance, though several are tried.
        """
        if any(record.pinned for record in self._registry.records()):
            return None
        self._recalled = {v: m for v, m in self._recalled.items() if v in versions}
        scale = unit_scale(window.y) if self._schema.task != "classify" else None
        known = {record.version for record in self._registry.records() if record.status not in BAD}
        for version in versions:
            if version not in known:
                continue
            try:
                served = self._recalled.get(version) or self.open(version)
            except EdgedError as problem:
                log.error("model_unusable", version=version, problem=problem.line())
                continue
            self._recalled[version] = served
            evidence = self._evidence(served.model, champion, window, scale)
            verdict = judge_recalled(self._schema.task, evidence, len(versions))
            if verdict.accepted:
                return verdict, served
        return None

    def _verify(self, folder: Path) -> tuple[Model, float]:
        """Whole, loadable, with the trainer's own outputs, and fast enough."""
        verify_directory(folder)
        self._breathe()
        model = self._load_model(folder / "model.onnx")
        x, expected = (np.load(folder / name, allow_pickle=False) for name in PROBE_FILES)
        if x.shape[1:] != (self._schema.width,) or len(x) == 0:
            raise ModelError(
                f"probe shape {x.shape}, the stream has {self._schema.width} features", where=str(folder)
            )
        got = model.predict(x)
        if got.shape != expected.shape or got.shape[1] not in self._widths():
            raise ModelError(f"output shape {got.shape}, the trainer had {expected.shape}", where=str(folder))
        if not np.isfinite(got).all():
            raise ModelError("the model's outputs are not finite", where=str(folder))
        worst = float(np.max(np.abs(got - expected) / np.maximum(1.0, np.abs(expected))))
        if not worst <= self._config.tolerance:  # NaN must not pass
            raise ModelError(f"outputs differ from the trainer's by {worst:.2g}", where=str(folder))
        self._breathe()
        seconds = self._latency(model, x[:1])
        if seconds > self._config.latency:
            raise ModelError(
                f"one prediction takes {seconds * 1e3:.1f} ms, {self._config.latency * 1e3:.1f} ms allowed",
                where=str(folder),
                remedy="raise gate.latency or use a smaller model",
            )
        return model, seconds

    def _widths(self) -> tuple[int, ...]:
        """Output widths that fit the stream: two classes may share one logit."""
        return (1, 2) if len(self._schema.classes) == 2 else (self._schema.outputs,)

    @staticmethod
    def _latency(model: Model, x: NDArray[np.float32]) -> float:
        times = []
        for _ in range(LATENCY_RUNS):
            started = time.perf_counter()
            model.predict(x)
            times.append(time.perf_counter() - started)
        return float(np.median(times))

    def _judge(
        self, model: Model, champion: Served, *, first: bool
    ) -> tuple[Verdict, NDArray[np.float32] | None]:
        recent = self._holdout.holdout_window(self._config.recent)
        self._breathe()
        scale = unit_scale(recent.y) if self._schema.task != "classify" and len(recent) > 1 else None
        if first:
            return Verdict(True, ("first model trained for this stream",)), scale
        pinned = [record.version for record in self._registry.records() if record.pinned]
        if pinned:
            return refuse(f"version {pinned[0]} is pinned"), scale
        rules = self._rules()
        if len(recent) == 0:
            return refuse(f"no labelled holdout sample yet, {rules.min_holdout} needed"), scale
        evidence = self._evidence(model, champion, recent, scale)
        retained = self._retained(model, champion, recent, scale)
        return judge(self._schema.task, evidence, retained, rules), scale

    def _rules(self) -> GateRules:
        config = self._config
        return GateRules(config.min_gain, config.max_regret, config.min_holdout, config.significance)

    def _retained(
        self, model: Model, champion: Served, recent: Window, scale: NDArray[np.float32] | None
    ) -> list[Retained]:
        """Both models on what is kept of each earlier regime, and of the present one up to the newest."""
        first, regimes = int(recent.seq[0]), self.regimes
        stretches = [
            (f"regime {i} (labels to {r.until})", r.after, r.until, regimes.drifted_since(r))
            for i, r in enumerate(regimes.ended, 1)
        ]
        stretches.append(("the time before", regimes.begun, first, False))
        retained = []
        for name, after, until, drifted in stretches:
            window = self._holdout.older_holdout(RETAINED, min(until + 1, first), seed=0, after_seq=after)
            self._breathe()
            if len(window):
                evidence = self._evidence(model, champion, window, scale)
                retained.append(Retained(name, evidence, elsewhere(window.x, recent.x), drifted))
        return retained

    def _evidence(
        self, model: Model, champion: Served, window: Window, scale: NDArray[np.float32] | None
    ) -> Evidence:
        return Evidence(
            *(
                errors(self._schema, answers(self._schema, m.predict(window.x)), window.y, scale)
                for m in (model, champion.model)
            )
        )

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
        record = self._registry.add(
            folder,
            parent=champion.version,
            created=self._clock.now(),
            source="training",
            run=result["run"],
            generation=result["generation"],
            data={k: result[k] for k in ("first_offset", "last_offset", "samples")},
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
        self._registry.set_champion(served.version, reason, self._clock.now())
        if self._registry.champion() != served.version:
            raise StorageError("the champion pointer did not move", where="models/champion")
        self.promotions += 1

    def confirm(self, version: int) -> None:
        """Probation passed."""
        self._registry.set_status(version, "good")

    def rollback(self, failing: int, reason: str, to: int | None = None) -> Served:
        """Go back to `to`, or to the newest loadable model before the failing one.

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
                served = self.open(version)
            except EdgedError as problem:
                log.error("model_unusable", version=version, problem=problem.line())
                continue
            self._registry.set_champion(version, reason, self._clock.now(), outgoing="rolled_back")
            self.rollbacks += 1
            return served
        raise RefusedError(
            "no other model can be loaded",
            where=f"version {to}" if to is not None else "registry",
            remedy="`edged models CONFIG list` shows what is there",
        )
