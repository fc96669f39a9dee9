"""Commands about models: which one serves, how good it is, and a copy of it."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from edged.device.events import Events
from edged.device.live_pipeline import LivePipeline
from edged.domain.commands.rules import Answer, Request
from edged.domain.commands.tasks import Task, TaskProgress
from edged.domain.judging.expert_mix import StreamModel
from edged.domain.judging.metrics import score
from edged.domain.judging.outputs import answers, errors
from edged.domain.protocols import ServedModel
from edged.errors import EdgedError, ModelError, RefusedError
from edged.host.child_process import run_order
from edged.mqtt import weight_encoding
from edged.storage.files.atomic import make_directory, publish_file, remove
from edged.storage.models.model_metadata import ModelMetadata

EXPORTS = "exports"
EXPORTS_KEPT = 8
MIXTURE_SECONDS = 120.0
ROWS = 500  # samples of an evaluation if the command does not give a number
PIECE = 64  # rows per call of the model: predictions continue in between
BREATH = 0.003


class ModelCommands:
    """`promote`, `rollback`, `pin`, `unpin`, `evaluate` and `export`: act on stored models."""

    def __init__(self, pipeline: LivePipeline, events: Events) -> None:
        self._pipeline = pipeline
        self._events = events

    def roll_back(self, request: Request) -> Answer:
        """Serve an earlier model again and reject the present one."""
        change = self._pipeline.rollout.roll_back("command", _version(request))
        self._events.states_changed()
        return change.to_json()

    def promote(self, request: Request) -> Answer:
        """Serve a stored model, with probation."""
        to = int(request["version"])
        others = [version for version in self._pipeline.registry.pinned() if version != to]
        if others:
            raise RefusedError(f"version {others[0]} is pinned", where=f"version {to}", remedy="send unpin")
        return self._serve(to, watch=True)

    def _serve(self, version: int, *, watch: bool) -> Answer:
        change = self._pipeline.rollout.promote(version, watch=watch)
        self._events.states_changed()
        return change.to_json()

    def pin(self, request: Request) -> Answer:
        """Serve one version until `unpin`: candidates are evaluated, but cannot replace it."""
        registry, champion = self._pipeline.registry, self._pipeline.predictor.champion.version
        version = _version(request) or champion
        registry.verify(registry.get(version).version)
        before = {"pinned": registry.pinned()}
        if self._pipeline.rollout.pin(version) != version:
            self._serve(version, watch=False)
        self._events.states_changed()
        return {"pinned": version, "before": before, "after": {"pinned": [version]}}

    def unpin(self, _: Request) -> Answer:
        """Unpin all versions: candidates can replace the model again."""
        unpinned = self._pipeline.registry.unpin_all()
        self._events.states_changed()
        return {"unpinned": unpinned, "before": {"pinned": unpinned}, "after": {"pinned": []}}

    # ---- how good --------------------------------------------------------------------------

    def evaluate(self, request: Request, task: Task) -> Answer:
        """Evaluate a model on the newest labelled samples that were never trained on."""
        self._pipeline.ingestor.flush()
        window = self._pipeline.reader.holdout_window(int(request.get("rows", ROWS)))
        if len(window) == 0:
            raise RefusedError("no labelled holdout sample yet", where="evaluate")
        served = self._model(_version(request))
        raw = []
        for start in range(0, len(window), PIECE):
            if task.cancelled:
                raise EdgedError("cancelled", where="evaluate")
            raw.append(served.model.predict(window.x[start : start + PIECE]))
            task.progress(TaskProgress(min(start + PIECE, len(window)), len(window)))
            time.sleep(BREATH)
        return {
            "version": served.version,
            "rows": len(window),
            "first_offset": int(window.offsets[0]),
            "last_offset": int(window.offsets[-1]),
            "figures": self._figures(served, np.concatenate(raw), window.y),
        }

    def _model(self, version: int | None) -> ServedModel:
        champion, models = self._pipeline.predictor.champion, self._pipeline.models
        return champion if version in (None, champion.version) else models.open(int(version or 0))

    def _figures(
        self, served: ServedModel, raw: NDArray[np.float32], y: NDArray[np.float32]
    ) -> dict[str, float]:
        schema = self._pipeline.schema
        found = answers(schema, raw)
        if schema.labels_itself:
            return {"error": float(np.mean(errors(schema, found, y, served.scale)))}
        return score(schema, y.astype(np.float64), found.astype(np.float64))

    # ---- a copy ----------------------------------------------------------------------------

    def export(self, request: Request, task: Task) -> Answer:
        """Write a model, its weights or what is served into the state directory's `exports/`.

        The newest 8 files stay there.
        """
        pipeline, what = self._pipeline, request.get("what", "model")
        version = _version(request) or pipeline.predictor.champion.version
        record = pipeline.registry.get(version)
        source = pipeline.registry.verify(record.version)
        name = f"model-{version}.onnx"
        if what == "weights":
            source, name = source.parent / weight_encoding.FILE, f"weights-{version}.safetensors.zst"
            if not source.exists():
                raise RefusedError(
                    "its weights were not kept apart from the model",
                    where=f"version {version}",
                    remedy="set weights.every, or export the model",
                )
        folder = self._pipeline.config.storage.dir / EXPORTS
        make_directory(folder)
        if what == "mixture":
            content, name = self._mixture(version, source, folder), f"mixture-{version}.onnx"
        else:
            content = source.read_bytes()
        if what != "weights":
            content = ModelMetadata.of_stream(pipeline.schema, record).stamp(content)
        task.progress(TaskProgress(bytes=len(content)))
        publish_file(folder / name, content)
        _prune(folder, EXPORTS_KEPT)
        return {
            "version": version,
            "file": f"{EXPORTS}/{name}",
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }

    def _mixture(self, version: int, source: Path, folder: Path) -> bytes:
        """Return what is served with this version as one ONNX file, which another process writes."""
        served = self._model(version)
        if not isinstance(served.model, StreamModel):
            raise RefusedError("nothing is mixed with this model", where=f"version {version}")
        with TemporaryDirectory(dir=folder.parent) as made:
            out = Path(made) / "mixture.onnx"
            order = served.model.mixture(source, out)
            try:
                run_order("edged.bundles", order, MIXTURE_SECONDS)
            except EdgedError as problem:
                raise ModelError(f"not exported: {problem.line()}", where=f"version {version}") from problem
            return out.read_bytes()


def _version(request: Request) -> int | None:
    return None if request.get("version") is None else int(request["version"])


def _prune(folder: Path, keep: int) -> None:
    files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    for path in files[:-keep]:
        remove(path)
