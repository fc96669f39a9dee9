"""A gate with real parts: registry, sample log with holdout, and models whose answers are known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.clock import VirtualClock
from edged.device.promotion.evaluator import CandidateEvaluator
from edged.device.promotion.model_store import ModelStore
from edged.engines.inference import InferenceModel, InferenceReader
from edged.storage.models.registry import Registry
from edged.storage.samples.log import SampleLog
from tests.constants import configured as with_constants_among
from tests.device.learning_rig import batch
from tests.device.linear import SCHEMA, candidate, classes, inputs, write

if TYPE_CHECKING:
    from edged.config import Config
    from edged.domain.judging.verdict import Verdict
    from edged.domain.protocols import ServedModel
    from edged.domain.stream.schema import Schema
    from edged.domain.training.training_run import Candidate


def configured(folder: Path, schema: Schema, gate: dict[str, Any]) -> Config:
    """The configuration of a device with such a stream and gate; at most ten models are kept."""
    stream: dict[str, Any] = {"features": schema.width}
    if schema.task == "classify":
        stream["classes"] = list(schema.classes)
    elif schema.task == "regress":
        stream["targets"] = schema.targets
    else:
        stream["target"] = schema.task
    return with_constants_among(
        {
            "device": {"id": "d"},
            "stream": stream,
            "gate": gate,
            "storage": {"dir": folder},
        }
    )


class Gate:
    """A state directory whose bundle's model is `base`, with labelled samples in the log."""

    def __init__(
        self,
        folder: Path,
        base: float,
        *,
        samples: int = 600,
        schema: Schema = SCHEMA,
        **gate: Any,
    ) -> None:
        self.folder, self.candidates = folder, folder / "candidates"
        self.base = write(folder / "base.onnx", base, outputs=schema.outputs)
        self.log = SampleLog.open(folder / "samples.db", schema, holdout=0.2)
        if samples:
            x = inputs(samples)
            self.log.commit(batch(self.log, x, classes(x)))
        self.registry = Registry.open(folder)
        self.settings = {"latency": 1.0, **gate}
        self.open_parts(schema)
        self.champion = self.models.boot(self.base)

    @classmethod
    def reopened(cls, folder: Path, schema: Schema = SCHEMA, **gate: Any) -> Gate:
        """What an earlier process has left there."""
        found = cls.__new__(cls)
        found.folder, found.candidates, found.base = folder, folder / "candidates", folder / "base.onnx"
        found.log = SampleLog.open(folder / "samples.db", schema, holdout=0.2)
        found.registry = Registry.open(folder)
        found.settings = {"latency": 1.0, **gate}
        found.open_parts(schema)
        found.champion = found.models.boot(found.base)
        return found

    def open_parts(self, schema: Schema = SCHEMA, reader: InferenceReader | None = None) -> None:
        """An evaluator and a model store on what is here."""
        config = configured(self.folder, schema, self.settings)
        reader = reader or InferenceReader()
        self.evaluator = CandidateEvaluator(config, self.registry, self.log, reader)
        self.models = ModelStore(config, self.registry, reader, VirtualClock(1000.0))

    def judge(self, result: Candidate, *, first: bool = False) -> tuple[Verdict, ServedModel | None]:
        """Evaluate a candidate and store it with its verdict."""
        return self.models.add(self.evaluator.evaluate(result, self.champion, first=first))

    def consider(self, slope: float, run: int = 1, **options: Any) -> tuple[Verdict, ServedModel | None]:
        """Bring a new candidate before the gate."""
        return self.judge(candidate(self.candidates, run, slope, **options))

    def refused(self, result: Candidate) -> str:
        """The one reason why a candidate was refused before any comparison."""
        verdict, model = self.judge(result)
        assert model is None
        assert not verdict.accepted
        assert self.registry.champion() == self.champion.version
        assert len(self.registry.records()) == 1, "what fails verification is not stored"
        assert self.models.rejections == 1
        (reason,) = verdict.reasons
        return str(reason)

    def crowned(self, slope: float, run: int) -> ServedModel:
        """A model that was made champion, good or not."""
        model = self.judge(candidate(self.candidates, run, slope), first=True)[1]
        assert model is not None
        self.models.set_champion(model.version, f"run {run}")
        self.champion = model
        return model

    def damage(self, version: int) -> None:
        """Flip one bit of a stored model."""
        path = self.folder / "models" / str(version) / "model.onnx"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    def model(self, slope: float) -> InferenceModel:
        """A model that is in no registry."""
        return InferenceModel(write(self.folder / "stray.onnx", slope))

    def reboot(self) -> ServedModel:
        """As after a restart of the daemon."""
        self.registry.close()
        self.registry = Registry.open(self.folder)
        self.open_parts()
        return self.models.boot(self.base)

    def close(self) -> None:
        """Close both databases."""
        self.registry.close()
        self.log.close()
