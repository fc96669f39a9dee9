"""Updates of weights in the trainer, and the weights from which training continues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.clock import VirtualClock
from edged.domain.training.trainer_messages import AdoptWeights, LogLine
from edged.domain.training.weight_coding import code, decode, fingerprint
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from edged.errors import CorruptError, RefusedError
from edged.mqtt import weight_encoding
from edged.storage.journal.transfers import TransferPurpose, TransferStaging, announced
from edged.storage.models.registry import Registry
from tests.device.learning_rig import LIMIT, Workshop, task
from tests.device.learning_rig import weights as bits

if TYPE_CHECKING:
    from edged.domain.protocols import Engine
    from edged.domain.training.training_run import Candidate
    from edged.storage.models.bundles import Bundle

    Weights = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


class Bench:
    """A device's state directory with a trained champion, and what takes weights into it."""

    def __init__(self, folder: Path, bundle: Bundle, engine: Engine) -> None:
        self.shop = Workshop(folder, bundle, steps=200, max_steps=200, average=0.0)
        self.bundle, self.engine, self.state = bundle, engine, folder
        self.registry = Registry.open(folder)
        self.shop.feed(*task(800))
        self.trainee = self.make_trainee()
        result = self.trainee.run(self.shop.request())
        self.champion = self.crowned(result.candidate, "training")
        self.adopter = self.shop.importer

    def make_trainee(self) -> Any:
        return self.shop.trainee(self.engine, with_weights=self.engine.name == "native")

    def crowned(self, candidate: Path, source: str) -> int:
        record = self.registry.add(candidate, created=1.0, source=source)
        self.registry.set_champion(record.version, source, 1.0)
        return record.version

    def own(self) -> Weights:
        """The champion's weights; right after its run they are the engine's."""
        return self.engine.parameters()

    def arrived(self, manifest: dict[str, Any], blob: bytes, name: str = "t") -> Path:
        """The transfer as it lies in the state directory."""
        chunks = weight_encoding.split(blob, 500)
        sizes = weight_encoding.manifest(blob, chunks).to_json()
        whole = {"encoding": weight_encoding.ENCODING, **manifest, "version": "fleet", **sizes}
        staging = TransferStaging(self.state, max_bytes=LIMIT, expire=60.0, clock=VirtualClock(0.0))
        if staging.transfer is not None:
            staging.discard(staging.transfer)
        transfer = announced(name, json.loads(json.dumps(whole)), TransferPurpose(), LIMIT)
        staging.open(transfer)
        assert all(staging.put(name, number, chunk) for number, chunk in enumerate(chunks))
        transfer.check(staging.content(transfer))
        return staging.folder / name

    def applied(self, values: Weights) -> Candidate:
        return self.adopter.import_weights(AdoptWeights(7, self.arrived({}, weight_encoding.pack(values))))

    def model(self, result: Candidate) -> Weights:
        return weight_encoding.unpack((result.folder / "weights.safetensors.zst").read_bytes())


@pytest.fixture(params=["native", "portable"])
def bench(tmp_path: Path, bundles: dict[str, Bundle], request: pytest.FixtureRequest) -> Iterator[Bench]:
    bundle = bundles[request.param]
    made = Bench(tmp_path / "state", bundle, open_engine(bundle.engine, bundle))
    yield made
    made.registry.close()
    made.shop.log.close()


def noisy(values: Weights, size: float, seed: int = 0) -> Weights:
    rng = np.random.default_rng(seed)
    return {n: np.asarray(v + rng.normal(0, size, v.shape), np.float32) for n, v in values.items()}


def test_weights_become_the_candidate_as_they_are(bench: Bench) -> None:
    before, other = bits(bench.engine), noisy(bench.own(), 0.3)
    result = bench.applied(other)
    assert fingerprint(bench.model(result)) == fingerprint(other)
    assert bits(bench.engine) == before, "the engine continues with its own"
    bench.engine.set_parameters(other)
    bench.engine.export(bench.state / "again.onnx")
    x, model = task(50, seed=5)[0], InferenceModel(bench.state / "candidates" / "7" / "model.onnx")
    assert np.allclose(model.predict(x), InferenceModel(bench.state / "again.onnx").predict(x), atol=1e-6)


def test_int8_weights_are_decoded_and_compared_with_their_manifest(bench: Bench) -> None:
    coded = code(noisy(bench.own(), 0.01), "int8")
    blob, weights = weight_encoding.pack_coded(coded), decode(coded)
    manifest = {"encoding": weight_encoding.CODED, "parameters": fingerprint(weights)}
    result = bench.adopter.import_weights(AdoptWeights(7, bench.arrived(manifest, blob)))
    assert fingerprint(bench.model(result)) == fingerprint(weights)
    wrong = {**manifest, "parameters": "0" * 64}
    with pytest.raises(CorruptError, match="other parameters than its manifest"):
        bench.adopter.import_weights(AdoptWeights(7, bench.arrived(wrong, blob)))


def test_weights_of_another_network_are_refused(bench: Bench) -> None:
    own = bench.own()
    name = min(bench.bundle.trainable)
    cases: dict[str, Weights] = {
        "has shape": {**own, name: np.zeros((2, 2), np.float32)},
        "no such parameter": {**own, "stranger": np.zeros(1, np.float32)},
        "not finite": {**own, name: np.full_like(own[name], np.nan)},
        "leaves it out": {other: value for other, value in own.items() if other != name},
    }
    for reason, values in cases.items():
        with pytest.raises(RefusedError, match=reason):
            bench.applied(values)


def test_training_goes_on_from_weights_that_took_over(bench: Bench) -> None:
    """One tiny step after it leaves them where they are, also in a new process; without them it did not."""
    other = noisy(bench.own(), 0.3, seed=2)
    version = bench.crowned(bench.applied(other).folder, "weights")
    bench.shop.feed(*task(60, seed=3))
    request = bench.shop.request(steps=1, learning_rate=1e-6)
    bench.trainee.run(request)
    assert near(bench.engine.parameters(), other)
    followed = bench.make_trainee()
    bench.shop.feed(*task(60, seed=4))
    followed.run(bench.shop.request(steps=1, learning_rate=1e-6))
    assert near(bench.engine.parameters(), other)
    notes = [m.what for m in bench.shop.reported(LogLine)]
    assert [what for what in notes if "continues from" in what] == [
        f"training continues from the weights of version {version}"
    ]


def test_after_a_rollback_training_goes_on_from_the_model_before(bench: Bench) -> None:
    own = bench.own()
    bench.crowned(bench.applied(noisy(own, 0.3)).folder, "weights")
    bench.shop.feed(*task(60, seed=3))
    bench.trainee.run(bench.shop.request(steps=1, learning_rate=1e-6))
    bench.registry.set_champion(bench.champion, "probation failed", 2.0, outgoing="rolled_back")
    bench.shop.feed(*task(60, seed=4))
    bench.trainee.run(bench.shop.request(steps=1, learning_rate=1e-6))
    assert near(bench.engine.parameters(), own)


def near(values: Weights, other: Weights) -> bool:
    return all(np.abs(values[name] - other[name]).max() < 1e-3 for name in other if "input" not in name)


def test_quality_does_not_fall_back_after_an_update_was_applied(bench: Bench, tmp_path: Path) -> None:
    """A world that turned over: the update knows it, and a run on few samples of it keeps what it knows."""
    x, labels = task(900, seed=9)
    turned = [2.0 - label for label in labels if isinstance(label, float)]
    teacher = Workshop(tmp_path / "teacher", bench.bundle, steps=400, max_steps=400)
    teacher.feed(x, [*turned])
    engine = open_engine(bench.bundle.engine, bench.bundle)
    teacher.trainee(engine).run(teacher.request())
    teacher.log.close()
    bench.crowned(bench.applied(engine.parameters()).folder, "weights")
    before = accuracy(bench, turned, x)
    bench.shop.feed(x[:100], [*turned[:100]])
    result = bench.trainee.run(bench.shop.request(steps=20, new_share=1.0))
    bench.crowned(result.candidate, "training")
    assert before > 0.8
    assert accuracy(bench, turned, x) > before - 0.03


def accuracy(bench: Bench, labels: list[float], x: Any) -> float:
    folder = bench.state / "models" / str(bench.registry.champion())
    answers = InferenceModel(folder / "model.onnx").predict(x).argmax(axis=1)
    return float(np.mean(answers == np.asarray(labels)))
