"""What commands print for people: times, sizes and figures in words, and a way on where nothing was asked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from edged.cli import output
from edged.cli.doctor import CheckResult
from edged.workbench.evaluation.figures import EvaluationReport
from tests.commands import edged

if TYPE_CHECKING:
    import pytest


def test_times_and_sizes_are_those_of_people(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_pairs(
        "models show", {"version": 3, "created": 1.8e9, "metrics": {"accuracy": 0.97, "kappa": 0.625}}
    )
    output.show_pairs("backup", {"created": 1.8e9, "bytes": 1_155_072, "samples": 12_345})
    told = capsys.readouterr().out
    assert len(re.findall(r"created +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", told)) == 2
    assert "1800000000" not in told
    assert "accuracy 97.0 %, kappa 0.625" in told
    assert "1.2 MB" in told
    assert "12,345" in told


def test_findings_are_one_line_each_with_every_word(capsys: pytest.CaptureFixture[str]) -> None:
    result = "no feature tags[name=tag2].value on " + "x" * 80
    output.show_findings([CheckResult("samples", "error", result, "look")])
    assert capsys.readouterr().out == f"error samples: {result} → look\n"


def test_figures_have_one_form_in_the_terminal_and_in_reports(capsys: pytest.CaptureFixture[str]) -> None:
    scores = {"accuracy": 0.81, "balanced_accuracy": 0.8, "kappa": 0.625}
    report = EvaluationReport(
        samples=3, scored=3, quarantined=0, warnings=(), metric=scores, frozen=scores, no_change=scores,
        experts={}, calibration_error=0.031, coverage=None, windows=(), trainings=3, promotions=3,
        rejections=3, rollbacks=3, drifts=(), labels_used=2700, anomaly=None,
        forgetting=0.003, engine="native", train_seconds=1.0, seconds=3.0, peak_rss_mb=3.0,
    )  # fmt: skip
    output.show_evaluation(report)
    told = capsys.readouterr().out
    assert re.search(r"adapted +81\.0 % +80\.0 % +0\.625", told)
    assert re.search(r"forgetting +\+0\.3 points", told)
    assert re.search(r"labels_used +2,700", told)


def test_edged_alone_says_where_to_start() -> None:
    alone = edged()
    assert alone.code == 2
    assert alone.err.rstrip().endswith("`edged init` (listens to your broker).")
    assert "(see" not in edged("artifacts").err
