"""Which models can be served: opened from the registry, the bundle's own as the last resort."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.bundle_contents import CHECKPOINT_DATA, PARAMETERS
from edged.domain.model_files import FLOAT32, INT8, file_name
from edged.domain.protocols import ServedModel
from edged.errors import (
    ConfigError,
    CorruptError,
    EdgedError,
    ModelError,
    RefusedError,
    StorageError,
    UnavailableError,
)
from edged.host.timeout import within
from edged.logs import get_logger

if TYPE_CHECKING:
    from pathlib import Path

    from edged.clock import Clock
    from edged.config import Config
    from edged.domain.protocols import Model, ModelReader
    from edged.storage.models.records import Status
    from edged.storage.models.registry import Registry

log = get_logger("edged.promote")

LOADING = "loading"  # the registry's value that tells which model was being loaded when the process died
BOOT_TRIES = 3
JUDGED = ("training", "weights", "bundle_install")  # sources of models that have passed the gate


class ModelLoader:
    """Opens versions of the registry, and moves the pointer to the one that is served.

    Attributes
    ----------
    timeout
        Seconds that loading a model may take.
    unusable
        Versions that could not be loaded.
    """

    def __init__(
        self,
        config: Config,
        registry: Registry,
        reader: ModelReader,
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._schema = config.stream.to_schema()
        self._reader = reader
        self._clock = clock
        self._staging = config.storage.dir / "candidates"
        self._int8 = config.serving.quantise == INT8
        self.timeout = config.gate.timeout
        self._base: Path | None = None
        self._base_hash: str | None = None
        self.unusable: list[int] = []

    @property
    def widths(self) -> tuple[int, ...]:
        """Output widths that fit the stream: two classes may share one logit."""
        return (1, 2) if len(self._schema.classes) == 2 else (self._schema.outputs,)

    def boot(self, base_model: Path, sha256: str | None) -> ServedModel:
        """Load the champion at startup: see `Promoter.boot`."""
        self._base, self._base_hash = base_model, sha256
        champion = self._registry.champion()
        for version in self._registry.best_loadable():
            try:
                served = self._open_at_boot(version)
            except (ConfigError, UnavailableError):
                raise  # serving is set up wrongly; no model is to blame, and none must be dethroned for it
            except EdgedError as problem:
                self.pass_over(version, problem)
                continue
            if version != champion:
                self._dethrone(version)
            return served
        return self.install_base(base_model)

    def pass_over(self, version: int, problem: EdgedError) -> None:
        """Note that a version cannot be loaded."""
        log.error("model_unusable", version=version, problem=problem.line())
        if version not in self.unusable:
            self.unusable.append(version)

    def _open_at_boot(self, version: int) -> ServedModel:
        """Load a version; one that ended the process several times while it was loaded is not tried again."""
        kept = self._registry.get_value(LOADING) or {}
        tries = kept["tries"] if kept.get("version") == version else 0
        if tries >= BOOT_TRIES:
            raise ModelError(
                f"the process died {tries} times while it was loaded", where=f"version {version}"
            )
        self._note_loading({"version": version, "tries": tries + 1})
        try:
            return within(self.timeout, "loading", lambda: self.open(version))
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
            self.point_to(successor, "the champion could not be loaded", outgoing="rolled_back")
        except StorageError as problem:
            log.warning("champion_not_replaced", version=successor, problem=problem.line())

    def install_base(self, base_model: Path, reason: str = "first model") -> ServedModel:
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
            from edged.engines.onnx.single_file import (
                whole_model,  # few bundles keep parameters in such a file
            )

            content = whole_model(base_model)
        (staging / file_name(base_model.suffix)).write_bytes(content)
        record = self._registry.add(staging, parent=None, created=self._clock.now(), source="bundle")
        served = self.open(record.version)
        self.point_to(record.version, reason, outgoing="rolled_back")
        return served

    def base(self, reason: str) -> ServedModel:
        """Make the bundle's own model the champion again, under a new version.

        Raises
        ------
        RefusedError
            When it is not known where that is.
        """
        if self._base is None:
            raise RefusedError("no bundle was opened", where="registry")
        return self.install_base(self._base, reason)

    def first(self) -> Model | None:
        """The bundle's own model, loaded; None where it is not known where that is.

        Raises
        ------
        ModelError
            When it cannot be loaded.
        """
        return None if self._base is None else self._reader.load(self._base)

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

    def open(self, version: int) -> ServedModel:
        """Load a version from the registry, verified and warmed up.

        Raises
        ------
        EdgedError
            When its files are damaged or it does not answer.
        """
        record = self._registry.get(version)
        self._reader.breathe()
        form = INT8 if self._int8 and record.data.get("form") == INT8 else FLOAT32
        path = self._registry.verify(version, form)
        self._reader.breathe()
        model = self._reader.load(path)
        out = model.predict(np.zeros((1, self._schema.width), np.float32))
        if out.shape[1] not in self.widths or not np.isfinite(out).all():
            raise ModelError(f"it predicts {out.tolist()} for zeros", where=f"version {version}")
        self._reader.breathe()
        scale = record.metrics.get("scale")
        return ServedModel(version, model, None if scale is None else np.asarray(scale, np.float32), form)

    def point_to(self, version: int, reason: str, *, outgoing: Status | None) -> None:
        """Move the champion pointer; what counts after an error is where it points then."""
        try:
            self._registry.set_champion(version, reason, self._clock.now(), outgoing=outgoing)
        except CorruptError:
            raise
        except StorageError as problem:
            if self._registry.champion() != version:
                raise
            log.warning("champion_moved_with_an_error", version=version, problem=problem.line())

    def load(self, version: int) -> ServedModel:
        """`open`, within the time that is allowed."""
        return within(self.timeout, "loading", lambda: self.open(version))

    def before(self, failing: int) -> ServedModel | None:
        """The newest loadable model other than the failing one."""
        return self.first_of([v for v in self._registry.best_loadable() if v != failing])

    def first_of(self, versions: list[int]) -> ServedModel | None:
        """The first of these that can be loaded."""
        for version in versions:
            try:
                return self.load(version)
            except EdgedError as problem:
                self.pass_over(version, problem)
        return None

    def base_instead(self, failing: int, reason: str) -> ServedModel | None:
        """The bundle's own model as champion, unless it is the one that fails or cannot be loaded."""
        if self._base is None or self._registry.get(failing).source == "bundle":
            return None
        try:
            return self.install_base(self._base, reason)
        except (ModelError, OSError) as problem:
            log.error("base_model_unusable", problem=line_of(problem))
            return None


def line_of(problem: Exception) -> str:
    """What went wrong, in one line."""
    if isinstance(problem, EdgedError):
        return problem.line()
    return " ".join(str(problem).split()) or type(problem).__name__
