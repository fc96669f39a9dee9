"""`edged fleet sim`: simulate, and write a page with the quality by round and device by device."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING

from edged import logs
from edged.charts.figures import percent, size
from edged.charts.html import document, table
from edged.charts.lines import ChartLine, LineChart
from edged.domain.messages.encoding import json_ready
from edged.errors import StorageError
from edged.fleet.simulation.simulation import SimulationPlan, simulate

if TYPE_CHECKING:
    from edged.fleet.simulation.figures import AccuracySpread, DeviceFigures, RoundFigures, SimulationReport

STYLE = """
.line.unseen,.key.unseen{stroke:#b4571e;color:#b4571e}.line.global,.key.global{stroke:#1d6fa5;color:#1d6fa5}
.line.mixed,.key.mixed{stroke:#2e7d4f;color:#2e7d4f}.line.worst,.key.worst{stroke:#2e7d4f;color:#2e7d4f;
stroke-dasharray:5 4}
"""


def page(report: SimulationReport) -> str:
    """Render the report as an HTML page."""
    rounds = report.figures.rounds
    body = f"<p>{_sentence(report)}</p>"
    if rounds:
        body += _chart(rounds) + f"<h2>Rounds</h2>{_rounds(rounds)}"
    body += f"<h2>Devices, on rows that nothing was chosen by</h2>{_devices(report.figures.per_device)}"
    return document(f"A fleet on {report.data}", body, STYLE)


def _sentence(report: SimulationReport) -> str:
    final, sent, central = report.figures.final, report.figures.bytes, report.central
    text = f"{report.devices} devices, {len(report.figures.rounds)} rounds."
    if final.unseen is not None:
        text += f" On rows of those that took no part the fleet's model has {percent(final.unseen)}"
        text += f", one trained on all rows together {percent(central.unseen)}." if central else "."
    if final.global_ is not None and final.mixed is not None:
        alone, mixed = (
            f"{percent(spread.mean)} (worst {percent(spread.worst)})"
            for spread in (final.global_, final.mixed)
        )
        text += f" On the devices themselves it has {alone}, mixed with their own {mixed}."
    if sent.ratio is not None:
        text += f" An update takes {size(sent.mean)}, {percent(sent.ratio)} of float32."
    if report.poisoned:
        text += f" {len(report.poisoned)} devices do harm."
    return text


def _chart(rounds: Sequence[RoundFigures]) -> str:
    numbers = [entry.round for entry in rounds]
    lines = [
        ChartLine("global", "global", [_mean(entry.global_) for entry in rounds]),
        ChartLine("mixed", "mixed", [_mean(entry.mixed) for entry in rounds]),
        ChartLine("mixed, worst device", "worst", [_worst(entry.mixed) for entry in rounds]),
    ]
    if any(entry.unseen is not None for entry in rounds):
        values = [nan if entry.unseen is None else entry.unseen for entry in rounds]
        lines.append(ChartLine("those that took no part", "unseen", values))
    return LineChart(numbers, numbers, lines, [], percent, unit="round").html()


def _mean(spread: AccuracySpread | None) -> float:
    return nan if spread is None else spread.mean


def _worst(spread: AccuracySpread | None) -> float:
    return nan if spread is None else spread.worst


def _rounds(rounds: Sequence[RoundFigures]) -> str:
    rows = [
        (
            str(entry.round),
            "yes" if entry.accepted else "no",
            str(entry.updates),
            f"{entry.seconds:.1f}",
            percent(entry.unseen),
            *(percent(of(kind)) for kind in (entry.global_, entry.mixed) for of in (_mean, _worst)),
        )
        for entry in rounds
    ]
    head = ["round", "accepted", "updates", "seconds", "no part", "global", "worst", "mixed", "worst"]
    return table(head, rows)


def _devices(devices: Sequence[DeviceFigures]) -> str:
    rows = [
        (
            entry.device + (f" ({entry.attack})" if entry.attack else ""),
            f"{entry.learned:,}",
            percent(entry.global_),
            percent(entry.mixed),
            percent(entry.share),
            str(entry.rounds),
            f"{entry.bytes:,}",
        )
        for entry in devices
    ]
    return table(["device", "rows", "global", "mixed", "share of global", "rounds", "bytes sent"], rows)


def run(plan: SimulationPlan, out: Path | None) -> SimulationReport:
    """The report, also written as `out`/report.json and `out`/index.html; StorageError where it cannot be."""
    logs.configure("error", "console")
    report = simulate(plan, lambda text: sys.stderr.write(f"{text}\n"))
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            told = json.dumps(json_ready(report.to_json()), indent=1)
            (out / "report.json").write_text(told, encoding="utf-8")
            (out / "index.html").write_text(page(report), encoding="utf-8")
        except OSError as problem:
            raise StorageError(f"cannot be written: {problem.strerror}", where=str(out)) from problem
    return report


def lines_of(report: SimulationReport) -> list[str]:
    """Format the report for people."""
    final, sent = report.figures.final, report.figures.bytes
    told = [f"{report.devices} devices, {len(report.figures.rounds)} rounds, {report.seconds:.0f} s"]
    if final.unseen is not None:
        told.append(f"those that took no part: {final.unseen:.1%}")
    if report.central is not None and isfinite(report.central.unseen):
        told.append(f"one model on all rows: {report.central.unseen:.1%}")
    told += [
        f"{kind}: {spread.mean:.1%} in the mean, worst {spread.worst:.1%}"
        for kind, spread in (("global", final.global_), ("mixed", final.mixed))
        if spread is not None
    ]
    if sent.mean is not None and sent.ratio is not None:
        told.append(f"an update: {sent.mean:,.0f} bytes, {sent.ratio:.1%} of float32")
    return told
