"""Several configurations on one recorded stream: their ranking, its intervals, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.domain.judging import metrics
from tests.commands import Answer, edged, strict_json, two_classes, write_config
from tests.workbench.evaluation.test_report import OPEN_GATE, Page, turning

CLASSES = {"features": 4, "classes": 2}


def configured(folder: Path, name: str, stream: dict[str, Any], **sections: Any) -> Path:
    (folder / name).mkdir()
    return write_config(folder / name, stream, **sections).rename(folder / f"{name}.yaml")


def compared(folder: Path, x: Any, y: Any, *paths: Path, out: Path | None = None) -> Answer:
    np.savez(folder / "s.npz", X=x, y=y)
    kept = [] if out is None else ["-o", out]
    return edged("evaluate", *paths, "--data", folder / "s.npz", *kept, "--json")


def test_configurations_are_ranked_by_their_difference_to_the_best(tmp_path: Path) -> None:
    paths = [
        configured(
            tmp_path, name, CLASSES, gate=OPEN_GATE,
            training={"replay": 0, "new_labels": 150} | training,
        )
        for name, training in {
            "still": {"enabled": False}, "learning": {}, "same": {},
        }.items()
    ]  # fmt: skip
    answer = compared(tmp_path, *turning(2000), *paths, out=tmp_path / "out")
    assert answer.code == 0, answer.err
    result = answer.json
    accuracies = {name: report["metric"]["accuracy"] for name, report in result["reports"].items()}
    assert result["metric"] == "accuracy"
    assert result["higher_is_better"] is True
    best, equal, worst = result["ranking"]
    assert (best["rank"], best["name"], best["found"]) == (1, "learning", "best")
    assert best["value"] == accuracies["learning"] == accuracies["same"], (
        "the same seed gives the same result"
    )
    assert (equal["name"], equal["found"], equal["difference"]) == ("same", "no difference found", 0.0)
    assert (worst["name"], worst["found"]) == ("still", "worse")
    assert worst["difference"] == pytest.approx(accuracies["still"] - accuracies["learning"])
    assert worst["low"] <= worst["difference"] <= worst["high"] < 0
    page = Page((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    assert "learning has the best accuracy" in page.text
    assert "no difference found to same" in page.text
    kept = strict_json((tmp_path / "out" / "results.json").read_text())
    assert kept["ranking"] == result["ranking"]
    assert kept["reports"]["still"]["history"]["verdicts"] == []
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "results.json"]


def test_detectors_are_ranked_by_the_area_under_the_curve(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1200, 1)) @ rng.normal(size=(1, 4)) + rng.normal(0, 0.05, (1200, 4))
    odd = (np.arange(1200) % 300 > 270).astype(np.int64)
    x[odd == 1] += rng.normal(0, 3, (int(odd.sum()), 4))
    section = {"features": 4, "task": "reconstruct"}
    paths = [
        configured(tmp_path, name, section, model={"hidden": hidden}, training={"new_labels": 0})
        for name, hidden in {"narrow": [1], "wide": [16, 2]}.items()
    ]
    answer = compared(tmp_path, x.astype(np.float32), odd, *paths)
    assert answer.code == 0, answer.err
    assert answer.json["metric"] == "auroc"
    for row in answer.json["ranking"]:
        assert row["value"] == pytest.approx(answer.json["reports"][row["name"]]["metric"]["auroc"])
        assert row["low"] <= row["difference"] <= row["high"]


@pytest.mark.parametrize(
    ("other", "where"),
    [
        ({"features": 4, "classes": 3}, "stream.classes"),
        ({"features": ["a", "b", "c", "d"], "classes": 2}, "stream.features"),
        ({"features": 4, "task": "regress"}, "stream.task"),
    ],
)
def test_streams_that_differ_are_refused_in_one_line(
    tmp_path: Path, other: dict[str, Any], where: str
) -> None:
    paths = [configured(tmp_path, "one", CLASSES), configured(tmp_path, "other", other)]
    answer = compared(tmp_path, *two_classes(200), *paths)
    assert answer.code == 2
    assert answer.problem.startswith(f"edged: {where}: one has ")
    assert len(answer.err.splitlines()) == 1


def test_configurations_that_read_other_labels_are_refused(tmp_path: Path) -> None:
    x, y = two_classes(200)
    lines = [",".join(map(str, [*row, a, 1 - a])) for row, a in zip(x.tolist(), y.tolist(), strict=True)]
    (tmp_path / "s.csv").write_text("\n".join(["a,b,c,d,u,v", *lines]))
    paths = [
        configured(tmp_path, name, {"features": ["a", "b", "c", "d"], "classes": 2, "label": label})
        for name, label in {"one": "u", "other": "v"}.items()
    ]
    answer = edged("evaluate", *paths, "--data", tmp_path / "s.csv")
    assert answer.code == 2
    assert "one and other read different samples or labels" in answer.problem


def test_the_mean_placement_is_the_area_under_the_curve() -> None:
    rng = np.random.default_rng(0)
    y = (rng.random(400) < 0.1).astype(np.float64)
    score = np.round(y + rng.normal(0, 1, 400), 1)
    pairs = score[y == 1][:, None] - score[y == 0][None, :]
    expected = ((pairs > 0) + 0.5 * (pairs == 0)).mean()
    assert metrics.placements(y, score).mean() == pytest.approx(expected)
    assert np.isnan(metrics.placements(np.zeros(5), score[:5])).all()
