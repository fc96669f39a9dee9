"""What an evaluation leaves for a person: the page and its history."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.charts.lines import ChartLine, LineChart, Marks
from tests.commands import edged, strict_json, two_classes, write_config

OPEN_GATE = {"min_gain": -1.0, "min_holdout": 1, "probation": 0}


class Page(HTMLParser):
    """Reads a page, and insists that every element is closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.open, self.heads = "", list[str](), list[str]()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open and self.open[-1] == "h2":
            self.heads.append(data)


def turning(n: int = 3000) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A rule that turns round in the middle of the stream."""
    x, y = two_classes(n)
    return x, np.where(np.arange(n) < n // 2, y, 1 - y)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("report")
    x, y = turning()
    np.savez(folder / "turning <stream>.npz", X=x, y=y)
    section = {"features": 4, "classes": ["worn & torn", "<ok>"]}
    config = write_config(folder, section, training={"replay": 0, "new_labels": 150}, gate=OPEN_GATE)
    out = folder / "out"
    answer = edged("evaluate", config, "--data", folder / "turning <stream>.npz", "-o", out, "--json")
    assert answer.code == 0, answer.err
    return out, strict_json((out / "report.json").read_text())


def test_the_page_tells_figures_classes_and_verdicts(kept: tuple[Path, dict[str, Any]]) -> None:
    out, report = kept
    html = (out / "report.html").read_text(encoding="utf-8")
    page = Page(html)
    assert page.heads == [
        "Accuracy over time",
        "Verdicts",
        "Classes",
        "How it was done",
    ]
    assert f"{100 * report['metric']['accuracy']:.1f} %" in page.text
    assert f"{report['trainings']:,} training runs" in page.text
    assert "turning <stream>.npz: rig" in page.text
    assert "worn & torn" in page.text
    assert "<ok>" not in html
    assert not re.search(r"(src|href)=", html)


def test_the_history_agrees_with_the_report(kept: tuple[Path, dict[str, Any]]) -> None:
    _, report = kept
    told = report["history"]
    lengths = [
        end - start + 1 for start, end in zip(told["curves"]["starts"], told["curves"]["ends"], strict=True)
    ]
    assert sum(lengths) == report["scored"]
    for line, name in (("adapted", "metric"), ("frozen", "frozen"), ("no_change", "no_change")):
        mean = np.dot(told["curves"][line], lengths) / report["scored"]
        assert mean == pytest.approx(report[name]["accuracy"])
    outcomes = [verdict["outcome"] for verdict in told["verdicts"]]
    assert outcomes.count("promoted") == report["promotions"]
    assert outcomes.count("refused") == report["rejections"]
    assert outcomes.count("rolled back") == report["rollbacks"]
    samples = [row["samples"] for row in told["per_class"]]
    assert sum(samples) == report["scored"]
    hits = sum(n * row["adapted"]["recall"] for n, row in zip(samples, told["per_class"], strict=True))
    assert hits / report["scored"] == pytest.approx(report["metric"]["accuracy"])
    assert told["swaps"], "the rule turned round: some model must have followed"


def test_a_rule_that_turns_round_is_forgotten_and_that_is_told(kept: tuple[Path, dict[str, Any]]) -> None:
    out, report = kept
    assert report["forgetting"] > 0.5
    page = Page((out / "report.html").read_text(encoding="utf-8"))
    assert f"+{100 * report['forgetting']:.1f} points on the pre-training part" in page.text


@pytest.mark.slow
def test_the_page_of_a_detector_shows_its_score_and_every_alarm(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 1)) @ rng.normal(size=(1, 4)) + rng.normal(0, 0.05, (1500, 4))
    odd = np.zeros(1500, np.int64)
    odd[700:760] = odd[1450:] = 1
    x[odd == 1] += rng.normal(0, 3, (110, 4))
    np.savez(tmp_path / "pump.npz", X=x.astype(np.float32), y=odd)
    section = {"features": 4, "task": "reconstruct"}
    config = write_config(tmp_path, section, training={"every": None, "new_labels": 0})
    out = tmp_path / "out"
    answer = edged("evaluate", config, "--data", tmp_path / "pump.npz", "-o", out)
    assert answer.code == 0, answer.err
    assert re.search(r"alarms +2: 7\d\d–7\d\d, 14\d\d–", answer.out)
    report = strict_json((out / "report.json").read_text())
    html = (out / "report.html").read_text(encoding="utf-8")
    page = Page(html)
    assert page.heads == ["Anomaly score over time", "Alarms", "Verdicts", "How it was done"]
    first, second = report["anomaly"]["alarms"]
    assert 700 <= first["row"] < 715
    assert 760 <= first["end"] < 775
    assert second["end"] is None
    assert second["peak"] > 1
    assert f"raised at sample {second['row']:,}, {1500 - second['row']:,} before the end" in page.text
    assert html.count('class="band alarm"') == 4, "on a desk and on a phone"
    assert html.count('class="band known"') == 4
    assert "recorded anomaly, samples 700 to 759" in page.text
    assert "stands" in page.text
    told = report["history"]["alarms"]
    assert told["starts"][0] == 150
    assert told["ends"][-1] == 1499
    assert max(told["adapted"]) == pytest.approx(max(first["peak"], second["peak"]))


def test_a_chart_leaves_out_what_is_no_number() -> None:
    picture = LineChart([0, 10, 20], [9, 19, 29], [ChartLine("a", "adapted", [0.5, float("nan"), 0.7])],
                         [Marks("swap", [(15, "model 2")])], str).html()  # fmt: skip
    Page(picture)
    assert "nan" not in re.sub(r"<title>.*?</title>", "", picture, flags=re.DOTALL)
    assert picture.count("model 2") == 2
