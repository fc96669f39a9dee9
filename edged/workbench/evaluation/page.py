"""An evaluation as one HTML page that needs nothing else: figures, quality over time, verdicts, alarms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from html import escape

import numpy as np

from edged.charts.figures import change, figure, percent, plain
from edged.charts.html import document, table
from edged.charts.lines import Bands, ChartLine, LineChart, Marks
from edged.domain.outcomes import why_not
from edged.workbench.evaluation.figures import (
    AnomalyFigures,
    DetectionFigures,
    EvaluationHistory,
    EvaluationReport,
    RecordedAlarm,
)

NAMES = {"adapted": "adapted", "frozen": "frozen", "no_change": "last label"}
FEW = 5


def page(title: str, report: EvaluationReport, history: EvaluationHistory) -> str:
    """Render the page as HTML text."""
    return document(title, sections(report, history))


def sections(report: EvaluationReport, history: EvaluationHistory) -> str:
    """The contents of the page, which a comparison shows of each configuration."""
    formatter = percent if history.figure == "accuracy" else plain
    parts = [
        _summary(report, history),
        _figures(report, history),
        _promises(report),
        _over_time(history, formatter) if report.anomaly is None else _anomalies(history, report.anomaly),
        _verdicts(report, history),
        _classes(history),
        _settings(report, history),
    ]
    return "".join(parts)


# ---- sections ------------------------------------------------------------------------------


def _summary(report: EvaluationReport, history: EvaluationHistory) -> str:
    if report.anomaly is not None:
        return f"<p class=lead>{_alarm_sentence(report, report.anomaly.adapted)}</p>"
    name = history.figure
    ours, frozen, last = (line[name] for line in (report.metric, report.frozen, report.no_change))
    if name == "accuracy":
        text = (
            f"Adapting, the model was right for <b>{percent(ours)}</b> of the samples, "
            f"<b>{change(name, ours - frozen)}</b> against the model that was never updated "
            f"({percent(frozen)}). Repeating the last known label gives {percent(last)}."
        )
    else:
        share = 100 * (1 - ours / frozen) if frozen else 0.0
        text = (
            f"Adapting, the mean absolute error was <b>{plain(ours)}</b>, <b>{share:.1f} % "
            f"{'smaller' if share >= 0 else 'larger'}</b> than that of the model that was never updated "
            f"({plain(frozen)}). Repeating the last known value gives {plain(last)}."
        )
    if last > ours if name == "accuracy" else last < ours:
        text += " <b>That is better than the model.</b>"
    return f"<p class=lead>{text}</p>"


def _figures(report: EvaluationReport, history: EvaluationHistory) -> str:
    names = list(report.metric)
    lines = {"adapted": report.metric, "frozen": report.frozen}
    if history.figure != "mean_score":
        lines["last label"] = report.no_change
    rows = [(title, *(figure(name, line.get(name)) for name in names)) for title, line in lines.items()]
    head = ["", *(name.replace("_", " ") for name in names)]
    return table(head, rows)


def _promises(report: EvaluationReport) -> str:
    """How often sets contained the truth, where any were promised."""
    found = report.coverage
    if found is None:
        return ""
    text = (
        f"The sets contained the truth in <b>{percent(found.covered)}</b> of the samples, promised were "
        f"{percent(found.promised)}."
    )
    return f"<p>{text}</p>"


def _over_time(history: EvaluationHistory, formatter: Callable[[float], str]) -> str:
    curves = history.curves
    if not curves.starts:
        return ""
    lines = [
        ChartLine(name, line, curves.lines[line]) for line, name in NAMES.items() if line in curves.lines
    ]
    chart = LineChart(curves.starts, curves.ends, lines, _moments(history), formatter).html()
    what = {"accuracy": "Accuracy", "mae": "Mean absolute error (lower is better)"}[history.figure]
    width = curves.ends[0] - curves.starts[0] + 1
    note = f"Windows of {width:,} samples; point at one for its values."
    return f"<h2>{what} over time</h2>{chart}<p class=note>{note}</p>"


def _verdicts(report: EvaluationReport, history: EvaluationHistory) -> str:
    verdicts = history.verdicts
    runs, promoted = report.trainings, report.promotions
    counts = (
        f"{runs:,} training run{'s' * (runs != 1)}, {promoted:,} candidate{'s' * (promoted != 1)} promoted, "
        f"{report.rejections:,} refused, {report.rollbacks:,} rolled back."
    )
    if not verdicts:
        return f"<h2>Verdicts</h2><p>{counts}</p>"
    kinds = Counter(
        why_not(v.reasons, v.numbers, forgets=v.forgets) for v in verdicts if v.outcome != "promoted"
    )
    common = "".join(f"<li>{n:,} × {escape(kind)}</li>" for kind, n in kinds.most_common(FEW))
    rows = [
        (
            f"{v.sample:,}",
            v.outcome,
            "–" if v.version is None else str(v.version),
            "; ".join(v.reasons),
        )
        for v in verdicts
    ]
    every = table(["sample", "outcome", "model", "why"], rows, "verdicts")
    return (
        f"<h2>Verdicts</h2><p>{counts}</p>{f'<ul>{common}</ul>' if common else ''}"
        f"<details><summary>every verdict</summary>{every}</details>"
    )


def _classes(history: EvaluationHistory) -> str:
    rows = [
        (
            row.name, f"{row.samples:,}",
            *(percent(share) for found in (row.adapted, row.frozen) for share in vars(found).values()),
        )
        for row in history.per_class
    ]  # fmt: skip
    if not rows:
        return ""
    head = ["class", "samples", "recall", "precision", "recall, frozen", "precision, frozen"]
    return f"<h2>Classes</h2>{table(head, rows)}"


def _settings(report: EvaluationReport, history: EvaluationHistory) -> str:
    rate, lost = history.label_rate, report.forgetting
    rows = [
        ("samples", f"{report.samples:,}, of which {history.pretrain:,} for pre-training"),
        ("warnings", "; ".join(report.warnings) or "none"),
        ("labels", f"{report.labels_used:,} arrived of {report.samples:,} samples, "
                   f"{history.delay:,} samples late" + ("" if rate == 1 else f" (share {rate:g})")),
        ("drift signals", str(len(history.drifts))),
        ("forgetting", "–" if lost is None else f"{change(history.figure, lost)} on the pre-training part"),
        ("engine", str(report.engine)),
        ("time", f"{report.seconds:.0f} s, {report.train_seconds:.0f} s of it training"),
        ("memory", f"{report.peak_rss_mb:.0f} MB"),
        ("seed", str(history.seed)),
    ]  # fmt: skip
    return f"<h2>How it was done</h2>{table(['', ''], rows, 'plain')}"


LOWEST = 0.01  # of the threshold: what lies below is drawn there


def _alarm_sentence(report: EvaluationReport, found: DetectionFigures) -> str:
    """Describe the alarms in some sentences."""
    alarms = found.alarms
    text = (
        f"{len(alarms) or 'No'} alarm{'s' * (len(alarms) != 1)} in {report.scored:,} samples; "
        f"{found.flagged:,} samples looked unusual and were not learned from."
    )
    standing = next((alarm for alarm in alarms if alarm.end is None), None)
    if standing is not None:
        before = report.samples - standing.row
        text += f" One stands, raised at sample <b>{standing.row:,}</b>, {before:,} before the end."
    if "auroc" in report.metric:
        figures = report.metric
        text += (
            f" Against the recorded anomalies: AUROC {plain(figures['auroc'])}, F1 {plain(figures['f1'])}."
        )
    return text


def _anomalies(history: EvaluationHistory, anomaly: AnomalyFigures) -> str:
    """The score over time in multiples of its threshold, on a logarithmic axis, and the alarms."""
    curves = history.alarms
    if curves is None or not curves.starts:
        return ""
    lines = [
        ChartLine(name, name, np.log10(np.maximum(highest, LOWEST)).tolist())
        for name, highest in (("adapted", curves.adapted), ("frozen", curves.frozen))
    ]
    known = Bands("known", [(a, b, f"recorded anomaly, samples {a:,} to {b:,}") for a, b in curves.truth])
    alarms = anomaly.adapted.alarms
    last = curves.ends[-1]
    ends = [last if a.end is None else a.end for a in alarms]
    bands = Bands("alarm", [(a.row, end, _describe_alarm(a)) for a, end in zip(alarms, ends, strict=True)])
    chart = LineChart(
        curves.starts, curves.ends, lines, _moments(history), lambda v: plain(10**v), 0.0, [bands, known]
    ).html()
    width = curves.ends[0] - curves.starts[0] + 1
    note = (
        f"Highest score of each {width:,} samples in multiples of the threshold of its time (dashed: 1), "
        "logarithmic. Shaded: alarms of the adapted model."
    )
    return (
        f"<h2>Anomaly score over time</h2>{chart}<p class=note>{note}</p>"
        f"<h2>Alarms</h2>{_table(alarms, 'the adapted model')}"
        f"{_table(anomaly.frozen.alarms, 'the frozen model')}"
    )


def _describe_alarm(alarm: RecordedAlarm) -> str:
    until = "the end" if alarm.end is None else f"sample {alarm.end:,}"
    return f"alarm of {alarm.key} from sample {alarm.row:,} to {until}"


def _table(alarms: Sequence[RecordedAlarm], whose: str) -> str:
    if not alarms:
        return f"<p class=note>None of {whose}.</p>"
    rows = [
        (
            f"{alarm.row:,}",
            "stands" if alarm.end is None else f"{alarm.end:,}",
            str(alarm.key),
            plain(alarm.peak),
            "yes" if alarm.accepted else "",
        )
        for alarm in alarms
    ]
    head = ["raised at sample", "ended", "key", "highest score / threshold", "accepted"]
    return f"<p class=note>Of {whose}:</p>{table(head, rows)}"


def _moments(history: EvaluationHistory) -> list[Marks]:
    """When drift was signalled and models changed."""
    drifts = [(d.offset - 1, f"{d.level.name.lower()}: {d.detector} on {d.source}") for d in history.drifts]
    swaps = [(s.sample, f"model {s.version} from sample {s.sample:,} on") for s in history.swaps]
    return [Marks("drift", drifts), Marks("swap", swaps)]
