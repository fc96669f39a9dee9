"""What a trainer process leaves where models are to serve as int8: both forms of the same weights."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.bundles.build import build
from edged.bundles.export.forms import RequestedForms
from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from edged.config import ServingConfig
from edged.device.startup.bootstrap import with_bundle
from edged.domain.training.trainer_messages import AdoptInitial, RunRequest
from edged.domain.training.training_run import RunOptions
from edged.engines.inference import InferenceModel
from edged.engines.model_parameters import parameters_of
from edged.engines.onnx.base_model import BaseModel
from edged.engines.onnx.exported import parameters_in
from edged.errors import BundleError
from edged.mqtt import weight_encoding
from edged.storage.models.bundles import Bundle
from tests.device.trainers import Plant

if TYPE_CHECKING:
    from edged.device.learning.trainer_client import TrainerClient


def quantised(folder: Path, wanted: RequestedForms) -> Bundle:
    return build(
        mlp(5, 3, (16,)),
        folder / "bundle",
        loss="cross_entropy",
        standardise=Statistics.identity(5),
        forms=wanted,
    )


def process_on(folder: Path, bundle: Bundle, engine: str) -> TrainerClient:
    plant = Plant(folder / "state", bundle, engine=engine)
    plant.config = plant.config.model_copy(update={"serving": ServingConfig(quantise="int8")})
    plant.log.close()
    return plant.process()


@pytest.mark.parametrize(
    ("engine", "wanted"),
    [("native", RequestedForms(True, True)), ("portable", RequestedForms(int8=True))],
    ids=str,
)
def test_a_run_and_the_bundles_own_model_come_in_both_forms(
    tmp_path: Path, engine: str, wanted: RequestedForms
) -> None:
    bundle = quantised(tmp_path, wanted)
    base = BaseModel.of_form(bundle, "int8")
    assert base is not None
    suffix = ".ort" if wanted.ort_format else ".onnx"
    with closing(process_on(tmp_path, bundle, engine)) as process:
        trained = process.run(RunRequest(1, "command"))
        own = process.run(AdoptInitial(2, "t", "u"))
    for folder in (trained.candidate, own.folder):
        assert {f"model{suffix}", f"model.int8{suffix}"} <= {path.name for path in folder.iterdir()}
        values = parameters_of(folder, bundle, lambda blob: weight_encoding.unpack(blob)[0])
        assert (folder / f"model.int8{suffix}").read_bytes() == base.with_parameters(values)
    final = trained.candidate
    x = np.load(final / "probe_input.npy")
    one, other = (InferenceModel(final / f"{stem}{suffix}").predict(x) for stem in ("model", "model.int8"))
    assert 0 < np.abs(one - other).max() < 0.1 * np.abs(one).max()
    if not wanted.ort_format:
        np.testing.assert_array_equal(parameters_in(final / "model.onnx", ["layer1.weight"])["layer1.weight"],
                                      values_of(final, bundle)["layer1.weight"])  # fmt: skip


def values_of(folder: Path, bundle: Bundle) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return dict(parameters_of(folder, bundle, lambda blob: weight_encoding.unpack(blob)[0]))


def test_from_champion_reads_a_champion_in_ort_format(tmp_path: Path) -> None:
    """The champion is the bundle's own model, changed: what a run begins with is seen in what it leaves."""
    from edged.storage.models.registry import Registry

    bundle = quantised(tmp_path, RequestedForms(ort_format=True))
    base = BaseModel.of_form(bundle, "float32")
    assert base is not None
    values = base.parameters() | {"layer2.bias": np.array([9.0, 0.0, -9.0], np.float32)}
    plant = Plant(tmp_path / "state", bundle, learning_rate=1e-9)
    plant.log.close()
    staged = tmp_path / "state" / "candidates" / "champion"
    staged.mkdir(parents=True)
    (staged / "model.ort").write_bytes(base.with_parameters(values))
    with Registry.open(tmp_path / "state") as registry:
        record = registry.add(staged, created=1.0, source="bundle")
        registry.set_champion(record.version, "test", 1.0)
    with closing(plant.process()) as process:
        result = process.run(RunRequest(1, "command", RunOptions(base="champion")))
    found = values_of(result.candidate, bundle)["layer2.bias"]
    np.testing.assert_allclose(found, values["layer2.bias"], atol=1e-3)


def test_the_standard_bundle_gets_the_form_that_is_to_serve(tmp_path: Path) -> None:
    plain = Plant(tmp_path / "one", quantised(tmp_path, RequestedForms(int8=True)), samples=1).config
    ordered = plain.model_copy(
        update={
            "serving": ServingConfig(quantise="int8"),
            "model": plain.model.model_copy(update={"bundle": None, "hidden": [8]}),
        }
    )
    made = with_bundle(ordered).model.bundle
    assert made is not None
    Bundle.open(made).check_form("int8")
    other = build(mlp(5, 3, (4,)), tmp_path / "other", loss="cross_entropy")
    other.check_form("none")
    with pytest.raises(BundleError, match=r"has no int8 form.*--int8 .*or leave serving\.quantise out"):
        other.check_form("int8")
