"""The tutorials: their shell lines are run one after the other, as a reader would."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edged.workbench.demo.broker import free_port

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto

DOCS = Path(__file__).parents[2] / "docs"
EXPORTED = Path(__file__).parents[1] / "bundles" / "exported"
_BLOCK = re.compile(
    r"(?:^<!-- (install|site|torch|save: \S+) -->\n)?^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE
)


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Return mark, language and text of each code block of a page."""
    return _BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))


def run(page: str, broker: Mosquitto, folder: Path) -> str:
    """Save the files of a tutorial in `folder`, run its shell lines there, and return what they print.

    Lines under `install` are left out: the tests have what they install; so are those under `site`, which
    are for several machines, and under `torch`. The broker's port goes into what names none: programs of the
    page, and mosquitto's clients by files of options.
    """
    script = ["set -emo pipefail", f"cd {folder}", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
    for mark, language, text in blocks(page):
        if mark.startswith("save: "):
            connected = text.replace('connect("localhost")', f'connect("localhost", {broker.port})')
            (folder / mark.removeprefix("save: ")).write_text(connected, encoding="utf-8")
        elif language == "sh" and not mark:
            for given, here in {
                "edged init": f"edged init --broker localhost:{broker.port}",
                "web: {}": f"web: {{listen: 127.0.0.1:{free_port()}}}",
                ".py 0.1": ".py 0.02",  # faster than a reader wants it
                ".py 0.2": ".py 0.02",
                "--rounds 5": "--rounds 2",
            }.items():
                text = text.replace(given, here)  # noqa: PLW2901
            script.append(text)
    for client in ("mosquitto_pub", "mosquitto_sub"):
        (folder / client).write_text(f"-p {broker.port}\n", encoding="utf-8")
    (folder / "tutorial.sh").write_text("\n".join(script), encoding="utf-8")
    settings = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_CONFIG_HOME": str(folder),
        "EDGED_MQTT__PORT": str(broker.port),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        ["bash", folder / "tutorial.sh"], capture_output=True, text=True, check=False, timeout=170,
        env=os.environ | settings,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.full
@pytest.mark.timeout(180)
def test_a_washing_machine_by_its_power(broker: Mosquitto, tmp_path: Path) -> None:
    told = run("tutorial-washing-machine.md", broker, tmp_path)
    assert "ok samples" in told
    assert '"label":null,"confidence"' in told.split("model_promoted")[0]
    assert '"untrained":true,"missing":"a first training run"' in told
    predictions = re.findall(r'"label":"(\w+)","confidence":', told.split("model_promoted")[1])
    assert len(predictions) == 3
    assert set(predictions) <= {"idle", "heating", "washing", "spinning"}


@pytest.mark.full
@pytest.mark.timeout(180)
def test_ten_minutes_with_zigbee2mqtt(broker: Mosquitto, tmp_path: Path) -> None:
    told = run("tutorial-zigbee2mqtt.md", broker, tmp_path)
    assert "features:\n    - temperature" in told
    assert "left out (radio signal)" in told
    predictions = re.findall(r'"label":"(\w+)","confidence":', told.split("model_promoted")[1])
    assert len(predictions) == 3
    assert set(predictions) <= {"away", "present"}


@pytest.mark.full
@pytest.mark.timeout(180)
def test_bearings_without_labels(broker: Mosquitto, tmp_path: Path) -> None:
    told = run("tutorial-bearings.md", broker, tmp_path)
    alarm = told.index('"event":"anomaly"')
    assert '"key":"b","state":"start"' in told[alarm:]
    assert '"key":"b","state":"end"' in told[alarm:]


@pytest.mark.full
@pytest.mark.timeout(180)
def test_your_own_pytorch_model(broker: Mosquitto, tmp_path: Path) -> None:
    shutil.copy(EXPORTED / "mlp_dynamo.onnx", tmp_path / "press.onnx")  # what export.py writes
    told = run("tutorial-pytorch.md", broker, tmp_path)
    assert "signed, whole, loads and trains here" in told
    assert re.search(r'"label": ?"normal"', told), "the trained weights came with the bundle"


def test_the_network_of_the_tutorial_is_the_one_that_was_exported() -> None:
    network = "nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))"
    assert network in (EXPORTED / "make.py").read_text(encoding="utf-8")
    assert network in (DOCS / "tutorial-pytorch.md").read_text(encoding="utf-8")
