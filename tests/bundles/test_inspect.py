from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import helper

from edged.bundles.graph.templates import autoencoder, mlp
from edged.bundles.inspect import inspect, verify
from edged.bundles.source.standardise import Statistics
from edged.domain.bundle_contents import Tensor
from edged.engines.native import api
from edged.errors import BundleError, CorruptError, EdgedError
from tests.building import build
from tests.installed import ENGINES, needs_native
from tests.networks import INPUT, Network
from tests.zoo import ZOO


def upstream_directory(
    path: Path,
    loss: str,
    *,
    outputs: int = 3,
    optimizer: str = "AdamW",
    network: onnx.ModelProto | None = None,
    frozen: int = 1,
) -> Path:
    """What upstream's generator writes, the last parameter frozen; nothing corrected afterwards."""
    artifacts = api.load("artifacts")
    model = network or mlp(6, outputs, (8,))
    names = [tensor.name for tensor in model.graph.initializer]
    path.mkdir()
    artifacts.generate_artifacts(
        model,
        requires_grad=names[:-frozen],
        frozen_params=names[-frozen:],
        loss=artifacts.LossType[loss],
        optimizer=artifacts.OptimType[optimizer],
        artifact_directory=str(path),
    )
    return path


def test_inspect_tells_what_is_inside(tmp_path: Path) -> None:
    model = mlp(6, 3, (8,))
    build(
        model, tmp_path / "b", loss="cross_entropy", freeze=["layer1.*"], standardise=Statistics.identity(6)
    )
    told = inspect(tmp_path / "b")
    rows = {row.name: (row.shape, row.size, row.trainable) for row in told.parameters}
    assert rows["layer2.weight"] == ((3, 8), 24, True)
    assert rows["layer1.weight"] == ((8, 6), 48, False)
    assert rows["input.mean"] == ((6,), 6, False)
    assert (told.trainable_size, told.frozen_size) == (27, 68)
    assert told.bytes == sum(file.bytes for file in told.files)
    assert (told.loss, told.optimizer) == ("cross_entropy", "adamw")


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "bce_with_logits", "l1"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("engine", ENGINES)
def test_our_bundles_verify(tmp_path: Path, loss: str, optimizer: str, engine: str) -> None:
    build(mlp(6, 2), tmp_path / "b", loss=loss, optimizer=optimizer, engine=engine)
    report = verify(tmp_path / "b")
    assert report.ok
    assert report.loss[1] < report.loss[0]
    assert [check.check for check in report.checks] == ["files", "graphs", "export", "training"]


def test_a_bundle_in_large_units_verifies(tmp_path: Path) -> None:
    statistics = Statistics.of({"mean": [1e5] * 4, "scale": [1e-3] * 4}, reconstruct=True)
    build(autoencoder(4, (8,), 2), tmp_path / "b", loss="mse", standardise=statistics)
    assert verify(tmp_path / "b").loss[0] < 100


@needs_native
@pytest.mark.parametrize(
    ("upstream", "ours"),
    [
        ("CrossEntropyLoss", "cross_entropy"),
        ("MSELoss", "mse"),
        ("BCEWithLogitsLoss", "bce_with_logits"),
        ("L1Loss", "l1"),
    ],
)
def test_a_directory_made_by_upstream_verifies(tmp_path: Path, upstream: str, ours: str) -> None:
    path = upstream_directory(tmp_path / "u", upstream)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    assert verify(path).ok
    told = inspect(path)
    assert (told.loss, told.optimizer) == (ours, "adamw")
    assert told.output == Tensor("logits", ("batch", 3))
    assert [row.name for row in told.parameters if not row.trainable] == ["layer2.bias"]
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def normalised() -> onnx.ModelProto:
    """x·W, a batch normalisation, ·V; the normalisation's own parameters are the last four."""
    net = Network(4)
    x = net.add("MatMul", [INPUT, net.weight("w", (4, 4), 4)])
    head = net.weight("v", (4, 2), 4)
    net.add("MatMul", [net.batch_norm(x, "bn", 4), head], "output")
    return net.model("normalised", 2)


@needs_native
@pytest.mark.parametrize(
    ("network", "frozen", "reason"),
    [
        (lambda: ZOO["cnn_average"].make(True), 1, "AveragePool has a gradient that ends the process"),
        (normalised, 2, "BatchNormalization would be trained with the statistics of each batch"),
        (normalised, 4, "BatchNormalization would be trained with the statistics of each batch"),
    ],
)
def test_what_upstream_made_to_crash_or_to_learn_wrongly_does_not_verify(
    tmp_path: Path, network: Callable[[], onnx.ModelProto], frozen: int, reason: str
) -> None:
    path = upstream_directory(tmp_path / "u", "MSELoss", network=network(), frozen=frozen)
    with pytest.raises(BundleError, match=reason):
        verify(path)


@needs_native
def test_upstreams_sgd_is_recognised(tmp_path: Path) -> None:
    assert inspect(upstream_directory(tmp_path / "u", "MSELoss", optimizer="SGD")).optimizer == "sgd"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_damaged_bundle_does_not_verify(tmp_path: Path, engine: str) -> None:
    build(mlp(6, 2), tmp_path / "b", loss="mse", engine=engine)
    file = tmp_path / "b" / ("checkpoint" if engine == "native" else "step_model.onnx")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    with pytest.raises(CorruptError, match=file.name):
        verify(tmp_path / "b")


@needs_native
@pytest.mark.parametrize(
    "name", ["training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint"]
)
def test_a_truncated_file_of_upstream_gives_one_clear_line(tmp_path: Path, name: str) -> None:
    path = upstream_directory(tmp_path / "u", "MSELoss")
    (path / name).write_bytes((path / name).read_bytes()[:100])
    with pytest.raises(EdgedError) as caught:
        verify(path)
    assert "\n" not in caught.value.line()


@needs_native
def test_a_missing_file_of_upstream_is_named(tmp_path: Path) -> None:
    path = upstream_directory(tmp_path / "u", "MSELoss")
    (path / "optimizer_model.onnx").unlink()
    with pytest.raises(BundleError, match=r"optimizer_model\.onnx is missing"):
        verify(path)


@needs_native
def test_a_base_model_that_does_not_belong_to_the_checkpoint_is_noticed(tmp_path: Path) -> None:
    bundle = build(mlp(6, 2, seed=1), tmp_path / "b", loss="mse", engine="native")
    onnx.save(mlp(6, 2, seed=2), str(bundle.inference_model))
    from edged.storage.models.bundles import seal

    seal(bundle, bundle.files)
    with pytest.raises(BundleError, match="checkpoint and inference model differ"):
        verify(tmp_path / "b")


def test_an_unrelated_directory_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no bundle"):
        verify(tmp_path)


def upstream_block(path: Path, model: onnx.ModelProto, loss: str) -> Path:
    """What upstream's generator writes with a block of one's own as the loss."""
    artifacts = api.load("artifacts")
    (path / "own.py").write_text("from onnxruntime.training import onnxblock\n\n" + loss)
    made = path / "u"
    made.mkdir()
    artifacts.generate_artifacts(
        model,
        requires_grad=[tensor.name for tensor in model.graph.initializer],
        loss=runpy.run_path(str(path / "own.py"))["Own"](),
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=str(made),
    )
    return made


@needs_native
def test_upstreams_directory_with_a_loss_that_reads_weights_verifies(tmp_path: Path) -> None:
    loss = """class Own(onnxblock.Block):
    def build(self, out):
        b = onnxblock.blocks
        squares = b.ReduceSum(keepdims=False)(b.Mul()("layer1.weight", "layer1.weight"))
        return b.Add()(onnxblock.loss.MSELoss()(out), squares)
"""
    path = upstream_block(tmp_path, mlp(6, 3, (8,)), loss)
    told = inspect(path)
    assert (told.label.name, told.output.name) == ("target", "logits")
    assert verify(path).ok


@needs_native
def test_upstreams_directory_with_several_labels_is_refused(tmp_path: Path) -> None:
    loss = """class Own(onnxblock.Block):
    def build(self, state, level):
        first = onnxblock.loss.CrossEntropyLoss()(state, "class")
        return onnxblock.blocks.Add()(first, onnxblock.loss.MSELoss()(level, "value"))
"""
    path = upstream_block(tmp_path, two_headed(), loss)
    with pytest.raises(BundleError, match="several inputs are labels"):
        inspect(path)


def two_headed() -> onnx.ModelProto:
    """Two dense layers on one input: `state (batch, 3)` and `level (batch, 1)`."""
    net = Network(6)
    net.dense(INPUT, "first", 6, 3, "state")
    net.dense(INPUT, "second", 6, 1, "level")
    made = net.model("two_headed", 3)
    del made.graph.output[:]
    made.graph.output.extend(
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", size])
        for name, size in (("state", 3), ("level", 1))
    )
    return made
