"""The commands as a person or a script meets them: exit codes, stdout, stderr."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
import yaml

from edged import __version__
from edged.bundles.graph.templates import cnn2d, mlp
from edged.domain.judging.outputs import probabilities
from edged.engines.inference import InferenceModel
from edged.storage.models.bundles import Bundle
from tests.bundles.models import chain
from tests.commands import COMMAND, edged, strict_json, two_classes, write_config
from tests.installed import needs_native
from tests.running_device import Device, running
from tests.zoo import ZOO

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker

STREAM = {"features": 4, "classes": 2}
COMMANDS = [
    [], ["run"], ["status"], ["train"], ["evaluate"], ["demo"], ["doctor"], ["models"],
    ["config"], ["config", "check"], ["config", "show"], ["config", "schema"],
    ["artifacts"], ["artifacts", "build"], ["artifacts", "check"], ["artifacts", "inspect"],
    ["artifacts", "verify"], ["model"], ["model", "new"],
]  # fmt: skip
TAKE_CONFIG = [
    ["run"], ["status"], ["train"], ["models"], ["config", "check"], ["config", "show"],
    ["evaluate", "--data", "x.npz"],
]  # fmt: skip


# ---- help and usage ------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_command_explains_itself() -> None:
    for command in COMMANDS:
        told = edged(*command, "--help")
        assert told.code == 0, command
        assert " ".join(["edged", *command]) in told.out, command


def test_the_version_is_told() -> None:
    answer = edged("--version")
    assert (answer.code, answer.out) == (0, f"edged {__version__}\n")


def test_without_a_command_the_help_is_shown() -> None:
    for arguments in ([], ["config"]):
        answer = edged(*arguments)
        assert answer.code == 2
        assert "--help" in answer.out + answer.err
        assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["nonsense"], "nonsense"),
        (["evaluate"], "CONFIG"),
        (["evaluate", "c.yaml"], "--data"),
        (["evaluate", "c.yaml", "--data", "x.npz", "--labels-delay", "-1"], "--labels-delay"),
        (["evaluate", "c.yaml", "--data", "x.npz", "--label-rate", "1.5"], "--label-rate"),
        (["evaluate", "c.yaml", "--data", "x.npz", "--seed", "-1"], "--seed"),
        (["evaluate", "c.yaml", "--data", "x.npz", "--pretrain", "many"], "--pretrain"),
        (["demo", "--seconds", "5"], "--seconds"),
        (["status", "c.yaml", "--no-such-option"], "--no-such-option"),
        (["models", "c.yaml", "show", "first"], "version"),
    ],
)
def test_wrong_usage_is_one_line_that_names_it(arguments: list[str], hint: str) -> None:
    answer = edged(*arguments)
    assert answer.code == 2
    assert hint.lower() in answer.problem.lower()
    assert answer.problem.startswith("edged")
    assert f"{arguments[0]} --help" in answer.problem or arguments == ["nonsense"]


@pytest.mark.parametrize("command", TAKE_CONFIG, ids=lambda command: command[0])
def test_a_missing_configuration_is_named(command: list[str], tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    at = 2 if command[0] == "config" else 1
    answer = edged(*command[:at], missing, *command[at:])
    assert answer.code == 2
    assert f"{missing}: cannot read the configuration" in answer.problem


def test_a_link_to_itself_is_no_configuration(tmp_path: Path) -> None:
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    answer = edged("run", loop)
    assert answer.code == 2
    assert f"{loop}: cannot read the configuration: Too many levels of symbolic links" in answer.problem


# ---- configuration -------------------------------------------------------------------------------


def test_a_configuration_is_checked_shown_and_described(tmp_path: Path) -> None:
    path = write_config(tmp_path, STREAM)
    assert edged("config", "check", path).out == f"{path}: ok\n"
    shown = edged("config", "show", path, "--json").json
    assert shown["stream"]["features"] == 4
    assert shown["training"]["steps"] == 50
    assert yaml.safe_load(edged("config", "show", path).out) == shown
    schema = strict_json(edged("config", "schema").out)
    assert set(shown) | {"streams"} == set(schema["properties"])


def test_what_is_shown_is_a_configuration_again(tmp_path: Path) -> None:
    shown = edged("config", "show", write_config(tmp_path, STREAM | {"target": None}, model={"hidden": [3]}))
    again = tmp_path / "again.yaml"
    again.write_text(shown.out)
    assert edged("config", "show", again).out == shown.out


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    path = write_config(tmp_path, STREAM, mqtt={"port": 1000})
    given = {"EDGED_MQTT__PORT": "1999", "EDGED_TRAINING__EVERY": "2h", "EDGED_LOG__LEVEL": "debug"}
    shown = edged("config", "show", path, "--json", **given).json
    assert (shown["mqtt"]["port"], shown["training"]["every"], shown["log"]["level"]) == (1999, 7200, "debug")


def test_a_wrong_override_names_its_variable(tmp_path: Path) -> None:
    answer = edged("config", "check", write_config(tmp_path, STREAM), EDGED_MQTT__PORT="none")
    assert answer.code == 2
    assert "EDGED_MQTT__PORT" in answer.problem


def test_an_unknown_key_is_named_with_file_line_and_what_was_meant(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("device: {id: a}\nstream: {features: 2}\ntraining:\n  new_label: 5\n")
    answer = edged("config", "check", path)
    assert answer.code == 2
    assert f"{path}:4: training.new_label" in answer.problem
    assert "did you mean new_labels?" in answer.problem


# ---- the offline phase ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a recorded stream, `model.onnx`, and the bundle `bundle` made of both."""
    folder = tmp_path_factory.mktemp("offline")
    x, y = two_classes(600)
    np.savez(folder / "data.npz", X=x * 50 + 7, y=y)
    made = edged(
        "model", "new", "mlp", "--inputs", 4, "--outputs", 2, "--hidden", "8", "-o", folder / "model.onnx"
    )
    assert (made.code, made.out) == (0, "")
    built = edged(
        "artifacts", "build", folder / "model.onnx", "-o", folder / "bundle",
        "--loss", "cross_entropy", "--data", folder / "data.npz", "--freeze", "layer1.*", "--json",
    )  # fmt: skip
    assert built.code == 0, built.err
    assert built.json["path"] == str(folder / "bundle")
    return folder


def test_a_bundle_tells_what_is_in_it(offline: Path) -> None:
    told = edged("artifacts", "inspect", offline / "bundle", "--json").json
    assert (told["loss"], told["optimizer"], told["engine"]) == ("cross_entropy", "adamw", "portable")
    assert {p["name"] for p in told["parameters"] if p["trainable"]} == {"layer2.weight", "layer2.bias"}
    assert told["trainable_size"] == 8 * 2 + 2
    assert {f["name"] for f in told["files"]} >= {"step_model.onnx", "inference_model.onnx"}
    table = edged("artifacts", "inspect", offline / "bundle")
    assert (table.code, "layer1.weight" in table.out) == (0, True)


def test_a_whole_bundle_is_verified_and_a_damaged_one_refused(offline: Path, tmp_path: Path) -> None:
    whole = edged("artifacts", "verify", offline / "bundle", "--json")
    assert (whole.code, whole.json["ok"]) == (0, True)
    damaged = shutil.copytree(offline / "bundle", tmp_path / "damaged")
    name = "step_model.onnx"
    content = bytearray((damaged / name).read_bytes())
    content[100] ^= 1
    (damaged / name).write_bytes(content)
    answer = edged("artifacts", "verify", damaged, "--json")
    assert answer.code == 1
    assert str(damaged / name) in answer.problem
    config = write_config(tmp_path, STREAM, model={"bundle": "damaged"})
    trained = edged("train", config, "--json")
    assert trained.code == 1
    assert f"damaged/{name}" in trained.problem


def test_what_a_build_could_not_do_as_usual_is_noted_for_a_person_too(tmp_path: Path) -> None:
    windows = Path(__file__).parents[1] / "bundles" / "exported" / "window_classic.onnx"
    built = edged("artifacts", "build", windows, "-o", tmp_path / "b", "--loss", "cross_entropy")
    assert built.code == 0, built.err
    assert "note: inputs are taken as they are" in built.out


def test_a_model_is_checked_before_anything_is_built(offline: Path, tmp_path: Path) -> None:
    shown = edged("artifacts", "check", offline / "model.onnx")
    assert (shown.code, "the portable engine can train it" in shown.out) == (0, True)
    assert "layer1.weight" in shown.out
    onnx.save(chain("Sinh"), str(tmp_path / "sinh.onnx"))
    refused = edged("artifacts", "check", tmp_path / "sinh.onnx", "--loss", "mse")
    assert refused.code == 1
    assert "node Sinh_1: operator Sinh cannot be trained through" in refused.out
    assert "--train last:1" in refused.out
    told = edged("artifacts", "check", tmp_path / "sinh.onnx", "--train", "last:1", "--json")
    assert (told.code, told.json["ok"], told.json["engine"]) == (0, True, "portable")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "seconds"), [(mlp(64, 6, (128, 64)), 2), (cnn2d((1, 28, 28), 10), 5)], ids=["mlp", "cnn2d"]
)
def test_a_build_takes_seconds(network: onnx.ModelProto, seconds: float, tmp_path: Path) -> None:
    """Processor time of the whole command: what it takes on a machine that does nothing else."""
    model = tmp_path / "m.onnx"
    onnx.save(network, str(model))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    built = edged("artifacts", "build", model, "-o", tmp_path / "b", "--loss", "cross_entropy")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert built.code == 0
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < seconds


@needs_native
def test_what_keeps_the_native_engine_from_training_is_told(tmp_path: Path) -> None:
    onnx.save(ZOO["cnn_average"].make(True), str(tmp_path / "m.onnx"))
    told = edged("artifacts", "check", tmp_path / "m.onnx", "--engine", "native")
    assert told.code == 1
    assert "the native engine cannot train it as it is" in told.out
    assert "node averagepool.2: operator AveragePool has a gradient that ends the process" in told.out
    assert "build with --engine portable" in told.out


BAD_BUILDS: dict[str, tuple[list[str], int, str]] = {
    "loss": (["--loss", "hinge"], 2, "one of cross_entropy"),
    "optimizer": (["--loss", "mse", "--optimizer", "lion"], 2, "one of adamw, adamw_pytorch, sgd"),
    "optimizer option": (["--loss", "mse", "--momentum", "0.9"], 2, "adamw has no momentum"),
    "glob": (["--loss", "mse", "--train", "head.*"], 2, "layer1.weight"),
    "data": (["--loss", "mse", "--data", "none.npz"], 2, "none.npz: no such file"),
    "engine": (["--loss", "mse", "--engine", "gpu"], 2, "one of portable, native"),
    "length": (["--loss", "mse", "--sequence", "9"], 2, "--sequence: the model has no axis of open length"),
    "no loss": ([], 2, "--loss"),
}


@pytest.mark.parametrize("case", BAD_BUILDS)
def test_a_bundle_that_cannot_be_built_says_why(case: str, offline: Path, tmp_path: Path) -> None:
    options, code, hint = BAD_BUILDS[case]
    answer = edged("artifacts", "build", offline / "model.onnx", "-o", tmp_path / "b", "--json", *options)
    assert answer.code == code
    assert hint in answer.problem
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("options", "code", "hint"),
    [
        (["transformer", "--inputs", 4], 2, "mlp, autoencoder"),
        (["mlp", "--inputs", 4], 2, "--outputs"),
        (["mlp", "--inputs", 0, "--outputs", 2], 2, "--inputs"),
        (["mlp", "--inputs", 4, "--outputs", 2, "--hidden", "8,x"], 2, "--hidden"),
    ],
)
def test_a_model_that_makes_no_sense_is_refused(
    options: list[Any], code: int, hint: str, tmp_path: Path
) -> None:
    answer = edged("model", "new", *options, "-o", tmp_path / "m.onnx")
    assert answer.code == code
    assert hint in answer.problem
    assert list(tmp_path.iterdir()) == []


def test_an_autoencoder_gives_back_what_it_takes(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    assert edged("model", "new", "autoencoder", "--inputs", 6, "--hidden", "4,2", "-o", path).code == 0
    assert InferenceModel(path).predict(np.zeros((3, 6), np.float32)).shape == (3, 6)


# ---- a state directory ---------------------------------------------------------------------------


@pytest.mark.slow
def test_a_refused_candidate_is_exit_code_3_with_its_verdict(offline: Path, tmp_path: Path) -> None:
    """An evaluation leaves a state directory behind, in which training can go on."""
    config = write_config(tmp_path, STREAM, model={"bundle": str(offline / "bundle")}, gate={"min_gain": 0.9})
    report = edged("evaluate", config, "--data", offline / "data.npz", "-o", tmp_path / "state", "--json")
    assert report.code == 0, report.err
    assert report.json["promotions"] == 0 < report.json["rejections"]
    answer = edged("train", config, "--json")
    assert answer.code == 3
    assert answer.json["verdict"]["accepted"] is False
    assert answer.json["verdict"]["reasons"][1] == "gate.min_gain asks for +90.0 points"
    listed = edged("models", config, "--json").json
    assert [m["version"] for m in listed if m["champion"]] == [answer.json["champion"]]
    assert edged("models", config, "show", answer.json["champion"], "--json").json["champion"] is True
    assert edged("models", config, "show", 99, "--json").code == 1
    status = edged("status", config, "--json").json
    assert set(status) >= {
        "state", "samples", "labels", "quarantined", "evicted", "model", "training", "outbox", "engine",
    }  # fmt: skip
    for command in (["status", config], ["models", config], ["models", config, "show", 1]):
        table = edged(*command)
        assert (table.code, table.err) == (0, "")
        assert len(table.out.splitlines()) > 3


def test_models_without_a_registry_says_what_to_do(tmp_path: Path) -> None:
    answer = edged("models", write_config(tmp_path, STREAM), "list", "--json")
    assert answer.code == 2
    assert "edged run" in answer.problem


@pytest.mark.slow
def test_a_built_bundle_serves_and_its_state_directory_belongs_to_one_daemon(
    offline: Path, broker: Broker, tmp_path: Path
) -> None:
    bundle = Bundle.open(offline / "bundle")
    device = Device(
        tmp_path, broker.port, STREAM | {"id": "id"},
        model={"bundle": str(bundle.path)}, training={"enabled": False},
    )  # fmt: skip
    x = two_classes(20)[0] * 50 + 7
    with running(device, broker.port) as listener:
        for row in range(len(x)):
            listener.send("sensors/a", {"id": str(row), "x": x[row].tolist()})
        listener.wait(lambda: len(listener.messages["predictions"]) == len(x))
        assert edged("status", device.path, "--json").json["state"] == "online"
        second = edged("run", device.path)
        assert second.code not in (0, None)
        assert "another edged is using this state directory" in second.out + second.err
        assert "Traceback" not in second.out + second.err
        for command in (["train", device.path], ["models", device.path, "rollback"]):
            refused = edged(*command, "--json")
            assert refused.code == 3
            assert str(device.state) in refused.problem
        assert [m["version"] for m in edged("models", device.path, "--json").json] == [1]
        listener.send("sensors/a", {"id": "last", "x": x[0].tolist()})
        listener.wait(lambda: listener.messages["predictions"][-1]["id"] == "last")
    wanted = probabilities(InferenceModel(bundle.inference_model).predict(x))
    got = np.array([p["output"] for p in listener.messages["predictions"][: len(x)]])
    assert np.abs(got - wanted).max() < 1e-4
    assert edged("status", device.path, "--json").json["state"] == "stopped"


def test_output_into_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen([*COMMAND, "config", "schema"], stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        _, told = process.communicate(timeout=60)
    assert b"Traceback" not in told
