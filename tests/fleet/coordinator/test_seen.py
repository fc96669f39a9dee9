"""What others see of a coordinator: its status at the broker, and its figures for Prometheus."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edged.errors import ConfigError, UnavailableError
from edged.fleet.coordinator import process
from edged.fleet.coordinator.process import MetricsServer, page
from tests.fleet.coordinator.channel import TOPICS, Fleet

ROOT = Path(__file__).parents[3]
NAMES = ["a", "b", "c", "d"]
SECTIONS: dict[str, Any] = {
    "round": {"devices": 3, "quorum": 0.5, "deadline": "100s", "window": 0, "over": 1},
    "choose": {"patience": "1s"},
    "gate": {"wait": "50s", "stages": [1.0]},
    "rollout": {"canaries": {"devices": ["a"]}},
}


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    made = Fleet(tmp_path / "fleet", **SECTIONS)
    for name in NAMES:
        made.state(name)
    made.state("e", samples=7)
    made.turns()
    made.wait(11)
    return made


def told(fleet: Fleet) -> dict[str, Any]:
    fleet.coordinator._publish_status(again=True)  # noqa: SLF001  else every two seconds of the real clock
    return dict(json.loads(fleet.line.retained[TOPICS.status]))


def test_the_broker_keeps_a_status_for_all_that_counts_no_ones_samples(fleet: Fleet) -> None:
    status = told(fleet)
    assert (status["phase"], status["round"], status["updates"]) == ("open", 1, 0)
    assert status["why_not"] == {"e": "fewer than 50 new labelled samples"}
    assert "samples" not in json.dumps(status).replace("labelled samples", "")
    for name in NAMES:
        fleet.update(name)
    fleet.turns()
    status = told(fleet)
    assert (status["rollout"]["name"], status["rollout"]["named"]) == ("canaries", 1)
    fleet.report("a", 5.0)
    fleet.turns()
    (entry,) = told(fleet)["rounds"]
    assert (entry["accepted"], entry["dissenters"]) == (False, ["a"])


def test_a_status_is_published_when_it_changes_and_now_and_then(fleet: Fleet) -> None:
    def count() -> int:
        fleet.coordinator._publish_status(again=True)  # noqa: SLF001  else every two seconds of the real clock
        return sum(topic == TOPICS.status for topic, _ in fleet.line.sent)

    before = count()
    assert count() == before
    fleet.clock.seconds += 61
    assert count() == before + 1
    fleet.update(fleet.told.devices[0])  # type: ignore[union-attr,index]
    fleet.turns()
    assert count() == before + 2


def test_prometheus_reads_its_figures(fleet: Fleet) -> None:
    told(fleet)
    text = page(fleet.coordinator)
    for line in (
        'edged_fleet_phase{fleet="plant",phase="open"} 1',
        'edged_fleet_devices{fleet="plant"} 5',
        'edged_fleet_devices_ready{fleet="plant"} 4',
        'edged_fleet_devices_not_ready{fleet="plant",reason="fewer than 50 new labelled samples"} 1',
        'edged_fleet_rounds_total{fleet="plant",outcome="accepted"} 0',
    ):
        assert line in text.splitlines()
    if shutil.which("promtool"):
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_refusals_of_all_rounds_are_counted(fleet: Fleet) -> None:
    fleet.line.say(TOPICS.up(1, "a"), b"nonsense")
    fleet.turns()
    fleet.wait(101)
    for _ in range(4):
        fleet.wait(101)
    told(fleet)
    assert 'edged_fleet_refused_total{fleet="plant",reason="malformed"} 1' in page(fleet.coordinator)


def test_metrics_are_served_on_this_machine(fleet: Fleet) -> None:
    told(fleet)
    server = MetricsServer(("127.0.0.1", 0), fleet.coordinator)
    try:
        with pytest.raises(UnavailableError, match="cannot listen"):
            MetricsServer(("127.0.0.1", server.port), fleet.coordinator)
        for path, status in (("/metrics", 200), ("/", 404)):
            link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
            link.request("GET", path)
            answer = link.getresponse()
            assert answer.status == status
            assert (b"edged_fleet_round" in answer.read()) is (status == 200)
            link.close()
    finally:
        server.close()


def test_metrics_are_for_this_machine_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no address and port of this machine"):
        Fleet(tmp_path, metrics={"listen": "0.0.0.0:9464"})


def test_the_dashboard_and_the_alerts_ask_for_metrics_that_there_are() -> None:
    known = set(re.findall(r'"(edged_fleet_[a-z_]+)"', Path(process.__file__).read_text(encoding="utf-8")))
    text = (ROOT / "deploy" / "grafana" / "edged-fleet.json").read_text(encoding="utf-8")
    assert set(re.findall(r"\bedged_fleet_[a-z_]+", text)) == known
    rules = (ROOT / "deploy" / "prometheus" / "edged-fleet.rules.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"\bedged_fleet_[a-z_]+", rules)) < known
    dashboard = json.loads(text)
    assert (dashboard["id"], dashboard["uid"]) == (None, "edged-fleet")
