"""Wrong paths, outputs that exist and interrupts, for every command: one line, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
from safetensors.numpy import save_file

from edged.fleet.config import load
from edged.fleet.coordinator.coordinator import Coordinator
from tests.cli.commands_walk import Command, commands, ordinary, right_paths
from tests.commands import COMMAND, edged, two_classes, write_config
from tests.fleet.coordinator.channel import Line, Time

if TYPE_CHECKING:
    from edged.mqtt.client.session import Session

ROOT = Path(__file__).parents[2]
WRITTEN = {  # by each command that writes a file, or a directory with these names
    "artifacts build": ["bundle.json"],
    "artifacts unpack": ["bundle.json"],
    "contract schemas": ["events.json"],
    "evaluate": ["report.json"],
    "fleet ui": ["index.html"],
    "init": ["edged.yaml"],
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Right paths: by the name of a parameter, or COMMAND:PARAMETER."""
    folder = tmp_path_factory.mktemp("good")
    x, y = two_classes(300)
    np.savez(folder / "data.npz", X=x, y=y, machine=np.arange(300) % 3)
    (folder / "fleet.yaml").write_text("fleet: plant\nmodel: bundle\nround: {devices: 2}\n")
    save_file({"w": np.ones(3, np.float32)}, folder / "w.safetensors")
    write_config(folder, {"features": 4, "classes": 2})
    loss = ["--loss", "cross_entropy", "--engine", "portable"]
    for words in (
        ["model", "new", "mlp", "--inputs", "4", "--outputs", "2", "-o", folder / "model.onnx"],
        ["artifacts", "build", folder / "model.onnx", "-o", folder / "bundle", *loss],
        ["artifacts", "pack", folder / "bundle", "-o", folder / "bundle.edged"],
        ["keys", "new", "-o", folder / "key"],
        ["train", folder / "edged.yaml"],
    ):
        edged(*words)
    Coordinator(
        load(folder / "fleet.yaml"), clock=Time(), session=cast("Session", Line())
    ).close()  # it has run here
    names = {
        "config": "edged.yaml", "configs": "edged.yaml", "data": "data.npz", "model": "model.onnx",
        "bundle": "bundle", "file": "bundle.edged", "key": "key", "source": "bundle",
        "fleet run:config": "fleet.yaml", "fleet status:config": "fleet.yaml",
        "fleet export:config": "fleet.yaml",
    }  # fmt: skip
    right = {name: str(folder / file) for name, file in names.items()}
    return right | {"out": "new", "folder": "new", "backup:file": "new", "artifacts export:out": "new.onnx"}


# ---- wrong paths ---------------------------------------------------------------------------


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "step", [pytest.param(3, marks=pytest.mark.full), pytest.param(1, marks=pytest.mark.faults)]
)
def test_wrong_paths_are_one_line_and_lose_nothing(good: dict[str, str], step: int, tmp_path: Path) -> None:
    walk = [sys.executable, "-m", "tests.cli.commands_walk", str(tmp_path), json.dumps(good), str(step)]
    done = subprocess.run(
        [*ordinary(), *walk],
        stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = []
    for outcome in outcomes:
        code, out, err = (outcome["answer"][name] for name in ("code", "out", "err"))
        last = (err.splitlines() or [""])[-1]
        if code not in range(5) or "Traceback" in err or outcome["changed"]:
            wrong.append((outcome["case"], code, last, outcome["changed"]))
        elif code and not last.startswith("edged") and not out:  # some print findings on stdout
            wrong.append((outcome["case"], code, "not a line of edged's", last))
    assert not wrong
    walked = {outcome["case"].partition(": ")[0] for outcome in outcomes}
    taking = {f"{c.name} {p.flag or p.name}" for c in commands() for p in c.parameters if p.path}
    assert walked == taking
    assert len(taking) > 50
    refused = [outcome for outcome in outcomes if outcome["answer"]["code"]]
    assert len(refused) > 0.9 * len(outcomes), "the paths are wrong ones, also for an ordinary user"


# ---- outputs that exist --------------------------------------------------------------------


def writing() -> Iterator[Command]:
    """Commands that write what they are told to."""
    for command in commands():
        names = {p.name for p in command.parameters if p.path}
        if names & {"out", "folder"} or command.name == "backup":
            yield command


def test_every_command_that_writes_knows_force() -> None:
    assert {"evaluate", "keys new", "backup", "models"} <= {command.name for command in writing()}
    for command in writing():
        assert "force" in [p.name for p in command.parameters], command.name


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", list(writing()), ids=lambda command: command.name)
def test_nothing_is_overwritten_without_force(command: Command, good: dict[str, str], tmp_path: Path) -> None:
    name = next(name for name in ("out", "folder", "file") if name in {p.name for p in command.parameters})
    out = tmp_path / "there.onnx"
    names = WRITTEN.get(command.name)
    files = [out] if names is None else [out / file for file in names]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    line = command.line(right_paths(command, good) | {name: str(out)})
    if command.name == "init":
        seen = tmp_path / "seen.jsonl"
        seen.write_text("".join(f'{{"temp": {n}.5, "vib": {n % 7}}}\n' for n in range(20)))
        line += ["--from", str(seen)]  # instead of a broker
    refused = edged(*line)
    assert refused.code == 2, refused
    assert f"edged: {out}: exists already" in refused.err
    assert "--force" in refused.err
    assert [file.read_text() for file in files] == ["mine"] * len(files)

    done = edged(*line, "--force")
    assert done.code == 0, done
    for file in files:
        assert file.read_bytes() != b"mine"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".staging")) == []


def test_force_replaces_only_what_the_command_wrote(good: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")
    answer = edged("evaluate", good["config"], "--data", good["data"], "-o", tmp_path, "--force")
    assert answer.code == 2
    assert f"{tmp_path}: holds notes.txt as well" in answer.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "report.json"]


# ---- interrupts ----------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.timeout(300)
def test_an_interrupt_while_a_file_is_read_is_one_line(good: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.commands_walk", str(tmp_path), json.dumps(good), "SIGINT"],
        stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    codes = (*range(5), 130)
    answers = [one["answer"] for one in outcomes]
    assert [a for a in answers if "Traceback" in a["err"] or a["code"] not in codes] == []
    interrupted = [one for one in outcomes if one["answer"]["code"] == 130]
    assert {one["answer"]["err"].splitlines()[-1] for one in interrupted} == {"edged: interrupted"}
    assert len(interrupted) > 15


@pytest.mark.parametrize("module", ["typer", "edged.cli.bundles"])
def test_an_interrupt_while_the_program_is_read_is_one_line(module: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", *COMMAND[1:], "config", "schema"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.endswith(f" {module}\n"):
            break
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in rest) == (130, False), rest
    assert rest.splitlines()[-1] == "edged: interrupted"


@pytest.mark.slow
def test_an_interrupt_while_the_daemon_starts_stops_it_in_order(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"features": 4, "classes": 2}, mqtt={"host": "localhost", "port": 1})
    process = subprocess.Popen(
        [*COMMAND, "run", str(config)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"PYTHONPROFILEIMPORTTIME": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if line.endswith(" edged.logs\n"):  # the command line does without it
            break
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in told) == (0, False), told
