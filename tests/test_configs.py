"""The examples: each is valid, explains itself line by line, and the broker takes its file."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from edged.config import Config
from edged.configfile import load
from tests.commands import generated_page_is_current

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "configs").glob("*.yaml"))
EVALUATIONS = sorted((ROOT / "configs" / "evaluate").glob("*.yaml"))
TASKS = {
    "classifier": "classify",
    "anomaly": "reconstruct",
    "forecast": "forecast",
    "regression": "regress",
    "windows": "classify",
}


def test_there_is_an_example_for_every_task() -> None:
    assert {example.stem: load(example, {}).stream.resolved_task for example in EXAMPLES} == TASKS


def test_recorded_streams_have_examples_of_their_own() -> None:
    tasks = {example.stem: load(example, {}).stream.resolved_task for example in EVALUATIONS}
    assert tasks == {"nasa_bearing": "reconstruct", "cmapss_fd001": "regress"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_shows_every_section(example: Path) -> None:
    sections = set(Config.model_fields) - ({"anomaly"} if example.stem != "anomaly" else set())
    assert set(yaml.safe_load(example.read_text())) == sections


@pytest.mark.parametrize("example", [*EXAMPLES, *EVALUATIONS], ids=lambda path: path.stem)
def test_every_line_of_an_example_is_explained(example: Path) -> None:
    settings = [line for line in example.read_text().splitlines() if line.startswith(" ")]
    assert [line for line in settings if " # " not in line] == []


def test_the_reference_is_up_to_date() -> None:
    assert generated_page_is_current("make_config_reference.py")


# A 3.1.1 CONNECT without name and password, and the answer "not authorised" (MQTT 3.1.1, sections 3.1, 3.2).
STRANGER = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00"
NOT_AUTHORISED = b"\x20\x02\x00\x05"


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def broker_file(tmp_path: Path, port: int) -> Path:
    """The file as shipped, on a port of its own, below a main file such as Debian's."""
    passwords = tmp_path / "edged.passwd"
    passwords.touch(mode=0o600)
    text = (ROOT / "deploy" / "mosquitto.conf").read_text()
    text = text.replace("listener 1883", f"listener {port} 127.0.0.1")
    text = text.replace("/etc/mosquitto/edged.passwd", str(passwords))
    main = f"persistence true\npersistence_location {tmp_path}/\nlog_dest stderr\nuser root\n"
    path = tmp_path / "mosquitto.conf"
    path.write_text(main + text)
    return path


def told_until_running(broker: subprocess.Popen[str]) -> list[str]:
    assert broker.stderr is not None
    told: list[str] = []
    while not told or " running" not in told[-1]:
        line = broker.stderr.readline()
        assert line, f"mosquitto ended: {told}"
        told.append(line)
    return told


def test_the_broker_takes_its_file_and_no_strangers(tmp_path: Path) -> None:
    mosquitto = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
    if mosquitto is None:
        pytest.fail("mosquitto is not installed: run `make test`, which installs it")
    port = free_port()
    command = [mosquitto, "-c", str(broker_file(tmp_path, port))]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as broker:
        try:
            told = told_until_running(broker)
            with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
                stranger.sendall(STRANGER)
                answer = stranger.recv(4)
        finally:
            # Not terminate: a SIGTERM between "running" and the main loop is lost in mosquitto 2.0.
            broker.kill()
    assert answer == NOT_AUTHORISED
    complaints = [line for line in told if "Error" in line or "Warning" in line]
    assert [line for line in complaints if "run as root" not in line] == []
