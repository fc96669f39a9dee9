"""What a report's page shows of anomalies: the score beside its threshold, and every alarm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from edged.charts.html import plain, table
from edged.charts.lines import Bands, ChartLine, line_chart
from edged.workbench.evaluation.markers import moments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOWEST = 0.01  # of the threshold: what lies below is drawn there


def alarm_sentence(report: Mapping[str, Any], history: Mapping[str, Any]) -> str:
    """What came of it, in some sentences."""
    found = history["alarms"]["adapted"]
    alarms = found["alarms"]
    text = (
        f"{len(alarms) or 'No'} alarm{'s' * (len(alarms) != 1)} in {report['scored']:,} samples; "
        f"{found['flagged']:,} samples looked unusual and were not learned from."
    )
    standing = next((alarm for alarm in alarms if alarm["end"] is None), None)
    if standing is not None:
        before = report["samples"] - standing["row"]
        text += f" One stands, raised at sample <b>{standing['row']:,}</b>, {before:,} before the end."
    if "auroc" in report["metric"]:
        figures = report["metric"]
        text += (
            f" Against the recorded anomalies: AUROC {plain(figures['auroc'])}, F1 {plain(figures['f1'])}."
        )
    return text


def anomalies(history: Mapping[str, Any]) -> str:
    """The score over time in multiples of its threshold, on a logarithmic axis, and the alarms."""
    told = history["alarms"]
    if not told["starts"]:
        return ""
    lines = [ChartLine(name, name, _logarithm(told[name]["highest"])) for name in ("adapted", "frozen")]
    known = Bands("known", [(a, b, f"recorded anomaly, samples {a:,} to {b:,}") for a, b in told["truth"]])
    alarms = told["adapted"]["alarms"]
    last = told["ends"][-1]
    bands = Bands("alarm", [(a["row"], _end(a, last), _told(a)) for a in alarms])
    chart = line_chart(
        told["starts"], told["ends"], lines, moments(history), lambda v: plain(10**v), 0.0, [bands, known]
    )
    width = told["ends"][0] - told["starts"][0] + 1
    note = (
        f"Highest score of each {width:,} samples in multiples of the threshold of its time (dashed: 1), "
        "logarithmic. Shaded: alarms of the adapted model."
    )
    return (
        f"<h2>Anomaly score over time</h2>{chart}<p class=note>{note}</p>"
        f"<h2>Alarms</h2>{_table(alarms, 'the adapted model')}"
        f"{_table(told['frozen']['alarms'], 'the frozen model')}"
    )


def _logarithm(values: Sequence[float]) -> list[float]:
    return [float(v) for v in np.log10(np.maximum(values, LOWEST))]


def _end(alarm: Mapping[str, Any], last: int) -> int:
    return last if alarm["end"] is None else int(alarm["end"])


def _told(alarm: Mapping[str, Any]) -> str:
    until = "the end" if alarm["end"] is None else f"sample {alarm['end']:,}"
    return f"alarm of {alarm['key']} from sample {alarm['row']:,} to {until}"


def _table(alarms: Sequence[Mapping[str, Any]], whose: str) -> str:
    if not alarms:
        return f"<p class=note>None of {whose}.</p>"
    rows = [
        (
            f"{alarm['row']:,}",
            "stands" if alarm["end"] is None else f"{alarm['end']:,}",
            str(alarm["key"]),
            plain(alarm["peak"]),
            "yes" if alarm.get("accepted") else "",
        )
        for alarm in alarms
    ]
    head = ["raised at sample", "ended", "key", "highest score / threshold", "accepted"]
    return f"<p class=note>Of {whose}:</p>{table(head, rows)}"
