"""The portable engine against the native one, and what it does beyond the common contract."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.bundles.graph.templates import autoencoder, mlp
from edged.bundles.source.standardise import Statistics
from edged.domain.protocols import Anchor, LearningRate
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from edged.engines.portable.description import Description
from edged.engines.portable.engine import PortableEngine
from edged.errors import BundleError, ConfigError, CorruptError, EdgedError, TrainingError
from edged.storage.models.bundles import Bundle, seal
from tests.building import build
from tests.engines.bundles import batches, classifier
from tests.installed import built_for_each, needs_native
from tests.zoo import activated

if TYPE_CHECKING:
    from edged.domain.protocols import Engine

RNG = np.random.default_rng(2)
LOSSES = ["cross_entropy", "mse", "l1", "bce_with_logits"]


def labelled(loss: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    x = RNG.standard_normal((rows, 5)).astype(np.float32)
    if loss == "cross_entropy":
        return x, RNG.integers(0, 3, rows)
    y = (x[:, :3] * 2 + 0.3 * RNG.standard_normal((rows, 3))).astype(np.float32)
    return x, (y > 0).astype(np.float32) if loss == "bce_with_logits" else y


def apart(a: Engine, b: Engine) -> float:
    """The largest difference of a parameter, relative to the largest value of that parameter."""
    mine, other = a.parameters(), b.parameters()
    return max(
        float(np.abs(mine[n] - other[n]).max() / max(1e-2, float(np.abs(other[n]).max()))) for n in mine
    )


def train_alike(bundles: Mapping[str, Bundle], steps: int, rate: float = 0.01) -> dict[int, float]:
    """Both engines on the same batches of 1, 16 and 64 rows; how far apart they are after so many steps."""
    engines = [open_engine(name, bundles[name]) for name in ("native", "portable")]
    for engine in engines:
        engine.begin(LearningRate(rate, warmup=3, total=2 * steps))
    found = {}
    for step in range(1, steps + 1):
        x, y = labelled(bundles["native"].loss, (1, 16, 64)[step % 3])
        native, portable = (engine.step(x, y) for engine in engines)
        assert portable.loss == pytest.approx(native.loss, rel=1e-4, abs=1e-6)
        found[step] = apart(engines[1], engines[0]) if step in (1, 10, 200) else 0.0
    return found


@needs_native
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("activation", ["Relu", "Tanh", "Sigmoid"])
def test_it_goes_where_the_native_engine_goes(
    tmp_path: Path, loss: str, optimizer: str, activation: str
) -> None:
    measuring = loss in ("mse", "l1")
    statistics = Statistics.identity(5, 3 if measuring else None)
    model = activated(mlp(5, 3, (8, 16)), activation)
    bundles = built_for_each(model, tmp_path, loss=loss, optimizer=optimizer, standardise=statistics)
    found = train_alike(bundles, 200)
    assert found[1] < 1e-5
    assert found[10] < 1e-4
    assert found[200] < 1e-4


@needs_native
def test_a_reconstruction(tmp_path: Path) -> None:
    statistics = Statistics(np.full(5, 0.1, np.float32), np.full(5, 2, np.float32), reconstruct=True)
    bundles = built_for_each(autoencoder(5, (8,), 2), tmp_path, loss="mse", standardise=statistics)
    engines = [open_engine(name, bundles[name]) for name in ("native", "portable")]
    for x, _ in batches(50):
        losses = [engine.step(x, x).loss for engine in engines]
        assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert apart(engines[1], engines[0]) < 1e-4


@needs_native
@pytest.mark.parametrize(
    ("train", "freeze"), [(["layer3.*"], []), ([], ["*.bias"]), (["*.weight"], ["layer2.*"])]
)
def test_some_parameters_frozen(tmp_path: Path, train: list[str], freeze: list[str]) -> None:
    bundles = built_for_each(mlp(5, 3, (8, 16)), tmp_path, loss="cross_entropy", train=train, freeze=freeze)
    bundle = bundles["portable"]
    initial = PortableEngine(bundle).parameters()
    assert train_alike(bundles, 200)[200] < 1e-4
    engine = PortableEngine(bundle)
    engine.step(*labelled("cross_entropy", 16))
    after = engine.parameters()
    changed = {name for name, value in after.items() if value.tobytes() != initial[name].tobytes()}
    assert changed == set(bundle.trainable)


@needs_native
def test_large_parameters_are_kept_apart_from_small_ones(tmp_path: Path) -> None:
    bundles = built_for_each(mlp(5, 3, (64, 300)), tmp_path, loss="cross_entropy")
    assert [len(group.parameters) for group in Description.of(bundles["portable"]).groups] == [5, 1]
    assert train_alike(bundles, 200, rate=0.002)[200] < 1e-4


@needs_native
def test_very_large_parameters_follow_the_native_engine_and_an_anchor(tmp_path: Path) -> None:
    bundles = built_for_each(mlp(5, 3, (260, 256)), tmp_path, loss="cross_entropy")
    assert train_alike(bundles, 20, rate=0.001)[10] < 1e-4
    native, portable = open_engine("native", bundles["native"]), PortableEngine(bundles["portable"])
    batch = labelled("cross_entropy", 16)
    for engine in (native, portable):
        engine.step(*batch, apply=False)
        engine.step(*batch)
    assert apart(portable, native) < 1e-5
    assert portable.evaluate(*batch) == pytest.approx(native.evaluate(*batch), rel=1e-5)
    away = portable.parameters()["layer2.weight"] - 1
    portable.guide(Anchor({"layer2.weight": np.ones((256, 260), np.float32)}, 0.1))
    pulled = native.evaluate(*batch) + 0.5 * 0.1 * float((away**2).sum())
    assert portable.step(*batch).loss == pytest.approx(pulled, rel=1e-4)


def test_two_threads_come_to_the_same(tmp_path: Path) -> None:
    bundle = classifier(tmp_path / "b")
    one, two = PortableEngine(bundle, threads=1), PortableEngine(bundle, threads=2)
    for batch in batches(20, 64):
        one.step(*batch)
        two.step(*batch)
    assert apart(one, two) < 1e-5


def test_a_provider_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    bundle = classifier(tmp_path / "b")
    with pytest.raises(ConfigError, match=r"no TensorrtExecutionProvider .*it has .*CPUExec"):
        PortableEngine(bundle, providers=["TensorrtExecutionProvider"])
    assert PortableEngine(bundle, providers=["CPUExecutionProvider"]).step(*batches(1)[0]).applied


# ---- weights of rows ---------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_padding_with_rows_of_weight_0_changes_nothing(tmp_path: Path, loss: str) -> None:
    bundle = build(mlp(5, 3, (8,)), tmp_path / "b", loss=loss)
    short, padded = PortableEngine(bundle), PortableEngine(bundle)
    x, y = labelled(loss, 5)
    rows, labels = np.zeros((16, 5), np.float32), np.zeros((16, *y.shape[1:]), y.dtype)
    rows[:5], labels[:5] = x, y
    weights = (np.arange(16) < 5).astype(np.float32)
    one, other = short.step(x, y), padded.step(rows, labels, weights=weights)
    assert other.loss == pytest.approx(one.loss, rel=1e-6)
    assert apart(short, padded) < 1e-5


@pytest.mark.parametrize("loss", LOSSES)
def test_a_row_of_weight_2_counts_like_two_rows(tmp_path: Path, loss: str) -> None:
    bundle = build(mlp(5, 3, (8,)), tmp_path / "b", loss=loss, optimizer="sgd")
    twice, weighted = PortableEngine(bundle), PortableEngine(bundle)
    for engine in (twice, weighted):
        engine.begin(LearningRate(0.5))
    x, y = labelled(loss, 4)
    index = [0, 0, 1, 2, 3]
    weights = np.array([2, 1, 1, 1], np.float32)
    assert weighted.step(x, y, weights=weights).loss == pytest.approx(
        twice.step(x[index], y[index]).loss, rel=1e-5
    )
    assert apart(twice, weighted) < 1e-5


@pytest.mark.parametrize("weights", [[0, 0], [1, -1], [np.nan, 1], [np.inf, 1]])
def test_weights_that_make_no_sense_are_refused(tmp_path: Path, weights: list[float]) -> None:
    engine = PortableEngine(classifier(tmp_path / "b"))
    with pytest.raises(TrainingError, match="weights of rows"):
        engine.step(*batches(1, 2)[0], weights=np.array(weights, np.float32))
    with pytest.raises(TrainingError, match="refuses a batch"):
        engine.step(*batches(1, 3)[0], weights=np.ones(2, np.float32))


# ---- the guard ---------------------------------------------------------------------------------


def test_a_bad_batch_leaves_moments_and_rate_as_they_were(tmp_path: Path) -> None:
    """Beyond the parameters: what follows is bit by bit what would have followed without it."""
    bundle = classifier(tmp_path / "b", standardise=False)
    plain, disturbed = PortableEngine(bundle), PortableEngine(bundle)
    bad = np.full((16, 5), np.nan, np.float32), np.zeros(16, np.int64)
    for engine in (plain, disturbed):
        engine.begin(LearningRate(0.01, warmup=5, total=40))
    for i, batch in enumerate(batches(20)):
        plain.step(*batch)
        disturbed.step(*batch)
        if i % 4 == 0:
            assert not disturbed.step(*bad).applied
            assert not disturbed.step(*bad, apply=False).applied
    mine, other = plain.parameters(), disturbed.parameters()
    assert all(mine[name].tobytes() == other[name].tobytes() for name in mine)


# ---- without the training package ----------------------------------------------------------------

ALONE = """
import sys
from pathlib import Path
for name in ("onnx", "onnxruntime.training", "onnxruntime.training.api", "torch"):
    sys.modules[name] = None
from edged.domain.protocols import Anchor, LearningRate
from edged.engines.portable.engine import PortableEngine
from edged.storage.models.bundles import Bundle
import numpy as np
data = np.load(sys.argv[2])
engine = PortableEngine(Bundle.open(Path(sys.argv[1])))
engine.restore(Path(sys.argv[3]))
for x, y in zip(data["x"], data["y"]):
    engine.step(x, y)
engine.check()
out = Path(sys.argv[4])
engine.save(out)
engine.export(out / "m.onnx")
held = [name for name in sys.modules if name.startswith(("edged.bundles", "edged.engines.native.engine"))]
print(held, engine.evaluate(data["x"][0], data["y"][0]))
"""


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_process_without_any_training_package_goes_on_bit_by_bit(tmp_path: Path, optimizer: str) -> None:
    bundle = classifier(tmp_path / "b", optimizer=optimizer)
    engine, made = PortableEngine(bundle), batches(20)
    engine.begin(LearningRate(0.02, warmup=7, total=25))
    for batch in made[:10]:
        engine.step(*batch)
    for name in ("half", "out"):
        (tmp_path / name).mkdir()
    engine.save(tmp_path / "half")
    for batch in made[10:]:
        engine.step(*batch)
    np.savez(tmp_path / "d.npz", x=[x for x, _ in made[10:]], y=[y for _, y in made[10:]])
    paths = [str(tmp_path / name) for name in ("b", "d.npz", "half", "out")]
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *paths], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[] ")
    resumed = PortableEngine(bundle)
    resumed.restore(tmp_path / "out")
    mine, other = engine.parameters(), resumed.parameters()
    assert all(mine[name].tobytes() == other[name].tobytes() for name in mine)
    x, y = made[0]
    exported = InferenceModel(tmp_path / "out" / "m.onnx").predict(x)
    assert float(np.exp(exported).sum()) > 0
    assert resumed.evaluate(x, y) == pytest.approx(engine.evaluate(x, y), abs=1e-6)


# ---- bundles -----------------------------------------------------------------------------------


def test_it_saves_its_state_and_nothing_else(tmp_path: Path) -> None:
    alone = PortableEngine(build(mlp(5, 3), tmp_path / "b", loss="mse", engine="portable"))
    assert alone.step(*labelled("mse", 8)).applied
    (tmp_path / "saved").mkdir()
    alone.save(tmp_path / "saved")
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [
        "engine.json",
        "state.safetensors",
    ]


def altered(bundle: Bundle, **changes: Any) -> Bundle:
    assert bundle.portable is not None
    portable = {key: value for key, value in {**bundle.portable, **changes}.items() if value is not None}
    return seal(Bundle(**{**vars(bundle), "portable": portable}), bundle.files)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"groups": None}, CorruptError),
        ({"optimizer": {"name": "lion"}}, CorruptError),
        ({"models": "step_model.onnx"}, CorruptError),
        ({"loss": "another"}, BundleError),
    ],
)
def test_a_description_that_does_not_fit_is_one_clear_line(
    tmp_path: Path, changes: dict[str, Any], kind: type[EdgedError]
) -> None:
    bundle = altered(classifier(tmp_path / "b"), **changes)
    with pytest.raises(kind) as caught:
        PortableEngine(bundle)
    assert "\n" not in caught.value.line()


def test_shapes_that_are_not_those_of_the_base_model_are_refused(tmp_path: Path) -> None:
    bundle = classifier(tmp_path / "b")
    frozen = [{"name": "input.mean", "shape": [10**6]}]
    with pytest.raises(CorruptError, match="other shapes than the model"):
        PortableEngine(altered(bundle, frozen=frozen))


def test_a_damaged_step_graph_is_one_clear_line(tmp_path: Path) -> None:
    bundle = classifier(tmp_path / "b")
    (bundle.path / "step_model.onnx").write_bytes(b"\x08\x08garbage")
    with pytest.raises(BundleError, match="the step graph cannot be loaded") as caught:
        PortableEngine(Bundle.open(bundle.path, verify=False))
    assert "\n" not in caught.value.line()


def test_nothing_is_exported_into_a_base_model_that_has_changed(tmp_path: Path) -> None:
    bundle = classifier(tmp_path / "b")
    engine = PortableEngine(bundle)
    content = bytearray(bundle.inference_model.read_bytes())
    content[100] ^= 1
    bundle.inference_model.write_bytes(content)
    with pytest.raises(CorruptError, match=r"not what bundle\.json says"):
        engine.export(tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_an_export_differs_from_the_base_model_in_the_weights_alone(tmp_path: Path) -> None:
    bundle = classifier(tmp_path / "b")
    engine = PortableEngine(bundle)
    engine.export(tmp_path / "before.onnx")
    assert (tmp_path / "before.onnx").read_bytes() == bundle.inference_model.read_bytes()
    engine.step(*batches(1)[0])
    engine.export(tmp_path / "after.onnx")
    assert len((tmp_path / "after.onnx").read_bytes()) == bundle.inference_model.stat().st_size
    assert (tmp_path / "after.onnx").read_bytes() != bundle.inference_model.read_bytes()


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    other = PortableEngine(build(mlp(5, 3, (7,)), tmp_path / "other", loss="cross_entropy"))
    engine = PortableEngine(classifier(tmp_path / "b"))
    (tmp_path / "saved").mkdir()
    other.save(tmp_path / "saved")
    with pytest.raises(CorruptError, match="another model or optimizer"):
        engine.restore(tmp_path / "saved")
