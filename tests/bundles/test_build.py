from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edged.bundles.graph.templates import autoencoder, mlp
from edged.bundles.source.standardise import Statistics
from edged.bundles.step_graph.portable import MODELS
from edged.engines.native import api as training_api
from edged.errors import BundleError, ConfigError
from edged.storage.models.bundles import Bundle
from tests.building import build
from tests.bundles.models import chain
from tests.installed import ENGINES, needs_native

GRAPHS = ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "inference_model.onnx")
STEP_GRAPHS = tuple(MODELS.values())


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "bce_with_logits", "l1"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_bundle_is_whole_and_readable_by_the_runtime(tmp_path: Path, loss: str, optimizer: str) -> None:
    bundle = build(mlp(5, 3, (8,)), tmp_path / "b", loss=loss, optimizer=optimizer, seed=4)
    assert Bundle.open(tmp_path / "b") == bundle
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == sorted(
        ["inference_model.onnx", *STEP_GRAPHS, "bundle.json"]
    )
    for path in (tmp_path / "b").glob("*.onnx"):
        assert onnx.load(str(path)).ir_version <= 10
    assert (bundle.loss, bundle.optimizer, bundle.seed) == (loss, optimizer, 4)
    assert bundle.label.dtype == ("int64" if loss == "cross_entropy" else "float32")


@needs_native
def test_it_trains_with_the_runtimes_own_api(tmp_path: Path) -> None:
    build(mlp(5, 2, (8,)), tmp_path / "b", loss="cross_entropy", engine="native")
    api = training_api.load("api")
    state = api.CheckpointState.load_checkpoint(str(tmp_path / "b" / "checkpoint"))
    module = api.Module(str(tmp_path / "b" / GRAPHS[0]), state, str(tmp_path / "b" / GRAPHS[1]))
    optimizer = api.Optimizer(str(tmp_path / "b" / GRAPHS[2]), module)
    x = np.random.default_rng(0).standard_normal((32, 5)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    losses = []
    for _ in range(50):
        losses.append(float(module(x, y)))
        optimizer.step()
        module.lazy_reset_grad()
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_input_gives_the_same_bytes(tmp_path: Path, engine: str) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.building import build\n"
        "from edged.bundles.graph.templates import mlp\n"
        "from edged.bundles.source.standardise import Statistics\n"
        "for i in range(2):\n"
        "    b = build(mlp(9, 4, (8, 8, 8)), Path(sys.argv[1]), loss='mse',\n"
        "              standardise=Statistics.identity(9, 4), engine=sys.argv[2])\n"
        "    print(b.fingerprint)"
    )
    prints = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / seed), engine],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=60,
        )
        assert done.stderr == b"", "the generator's own messages must not reach the terminal"
        prints.update(done.stdout.split())
    assert len(prints) == 1


def test_globs_choose_what_is_trained(tmp_path: Path) -> None:
    bundle = build(mlp(5, 2, (8,)), tmp_path / "b", loss="mse", train=["*.weight"], freeze=["layer1.*"])
    assert bundle.trainable == ("layer2.weight",)
    assert bundle.frozen == ("layer1.weight", "layer1.bias", "layer2.bias")


@pytest.mark.parametrize("key", ["train", "freeze"])
def test_a_glob_that_matches_nothing_lists_the_parameters(tmp_path: Path, key: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"{key}: 'conv\*' matches no parameter \(parameters: layer1.weight, layer1"
    ):
        build(mlp(5, 2, (8,)), tmp_path / "b", loss="mse", **{key: ["conv*"]})  # type: ignore[arg-type]


def test_freezing_everything_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing is left to train"):
        build(mlp(5, 2), tmp_path / "b", loss="mse", freeze=["*"])


def test_standardisation_is_frozen_and_named(tmp_path: Path) -> None:
    bundle = build(mlp(5, 2, ()), tmp_path / "b", loss="mse", standardise=Statistics.identity(5, 2))
    assert bundle.standardise == {"mean": "input.mean", "scale": "input.scale"}
    assert bundle.target_standardise == {"mean": "target.mean", "scale": "target.scale"}
    assert bundle.frozen == ("input.mean", "input.scale", "target.mean", "target.scale")
    assert bundle.trainable == ("layer1.weight", "layer1.bias")


def test_a_reconstruction_shares_the_inputs_statistics(tmp_path: Path) -> None:
    statistics = Statistics.identity(5, reconstruct=True)
    bundle = build(autoencoder(5, (4,), 2), tmp_path / "b", loss="mse", standardise=statistics)
    assert bundle.target_standardise == bundle.standardise == {"mean": "input.mean", "scale": "input.scale"}


def test_a_class_cannot_be_standardised(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cross_entropy"):
        build(mlp(5, 2), tmp_path / "b", loss="cross_entropy", standardise=Statistics.identity(5, 2))


def test_a_model_from_elsewhere(tmp_path: Path) -> None:
    onnx.save(chain(opset=18, ir_version=9, batch=1), str(tmp_path / "m.onnx"))
    bundle = build(tmp_path / "m.onnx", tmp_path / "b", loss="mse", standardise=Statistics.identity(4))
    assert bundle.input.shape == ("batch", 4)
    assert bundle.trainable == ("fc1.weight", "fc2.weight", "fc2.bias")
    assert bundle.opset == 18


def test_an_operator_without_gradient_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="node Sinh_1: operator Sinh cannot be trained through"):
        build(chain("Sinh"), tmp_path / "b", loss="mse")
    assert build(chain("Sinh"), tmp_path / "b", loss="mse", train=["fc2.*"]).frozen == ("fc1.weight",)


def test_a_parameter_the_loss_does_not_depend_on_is_refused(tmp_path: Path) -> None:
    model = chain()
    model.graph.node.append(helper.make_node("Mul", ["input", "lost"], ["aside"]))
    model.graph.initializer.append(helper.make_tensor("lost", TensorProto.FLOAT, [4], [1.0] * 4))
    with pytest.raises(BundleError, match="lost"):
        build(model, tmp_path / "b", loss="mse")
    assert build(model, tmp_path / "b", loss="mse", freeze=["lost"]).frozen == ("lost",)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"loss": "hinge"}, "no loss 'hinge'"),
        ({"optimizer": "lion"}, "no optimizer"),
        ({"engine": "cuda"}, "no engine"),
    ],
)
def test_unknown_choices_are_refused(tmp_path: Path, changes: dict[str, str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        build(mlp(5, 2), tmp_path / "b", **{"loss": "mse", **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("engine", "files"),
    [("native", [*GRAPHS, "checkpoint"]), ("portable", ["inference_model.onnx", *STEP_GRAPHS])],
)
def test_a_bundle_for_one_engine_has_its_files_alone(tmp_path: Path, engine: str, files: list[str]) -> None:
    bundle = build(mlp(5, 2), tmp_path / "b", loss="mse", engine=engine)
    assert bundle.engine == engine
    assert sorted(path.name for path in bundle.path.iterdir()) == sorted([*files, "bundle.json"])
    assert sorted(bundle.files) == sorted(files)


def test_a_failed_build_leaves_nothing_behind_and_the_old_bundle_alone(tmp_path: Path) -> None:
    before = build(mlp(5, 2), tmp_path / "b", loss="mse")
    with pytest.raises(BundleError):
        build(chain("Sinh"), tmp_path / "b", loss="mse")
    assert Bundle.open(tmp_path / "b") == before
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_directory_that_is_no_bundle_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "notes.txt").write_text("mine")
    with pytest.raises(BundleError, match="not be replaced"):
        build(mlp(5, 2), tmp_path / "b", loss="mse")
    assert (tmp_path / "b" / "notes.txt").read_text() == "mine"


def test_a_missing_parent_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"no/where: cannot write here: No such file"):
        build(mlp(5, 2), tmp_path / "no" / "where" / "b", loss="mse")


def test_a_full_disk_is_one_clear_line_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """The child may not write files larger than 4 KB, which is where the disk is full for it."""
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from tests.building import build; from edged.bundles.graph.templates import mlp\n"
        "from edged.errors import EdgedError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n    build(mlp(200, 4), Path(sys.argv[1]), loss='mse')\n"
        "except EdgedError as problem:\n    print(problem)"
    )
    command = [sys.executable, "-B", "-c", code, str(tmp_path / "b")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.count("\n") == 1
    assert "File too large" in done.stdout
    assert list(tmp_path.iterdir()) == []
