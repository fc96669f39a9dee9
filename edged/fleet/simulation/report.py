"""`edged fleet sim`: simulate, and write a page with the quality by round and device by device."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged import logs
from edged.charts.figures import percent, size
from edged.charts.html import document, table
from edged.charts.lines import ChartLine, LineChart
from edged.domain.messages.encoding import json_ready
from edged.errors import StorageError
from edged.fleet.simulation.simulation import SimulationPlan, simulate

if TYPE_CHECKING:
    from edged.fleet.simulation.figures import (
        AccuracySpread,
        ComparedFigures,
        DeviceFigures,
        RoundFigures,
        SimulationReport,
    )

STYLE = """
.line.unseen{stroke:#b4571e}.key.unseen::before{background:#b4571e}
.line.global{stroke:#1d6fa5}.key.global::before{background:#1d6fa5}
.line.mixed{stroke:#2e7d4f}.key.mixed::before{background:#2e7d4f}
.line.worst{stroke:#8a4fa3;stroke-dasharray:5 4}
.key.worst::before{background:repeating-linear-gradient(90deg,#8a4fa3 0 5px,transparent 5px 9px)}
"""


def page(report: SimulationReport) -> str:
    """Render the report as an HTML page."""
    rounds = report.figures.rounds
    body = f"<p>{_sentence(report)}</p>"
    body += f"<h2>Compared</h2>{_compared(report)}"
    if rounds:
        body += _chart(rounds) + f"<h2>Rounds</h2>{_rounds(rounds)}"
    for name, group in report.groups.items():
        body += f"<h2>{name}: {len(group.per_device)} devices with a model of their own</h2>"
        body += _chart(group.rounds) + _rounds(group.rounds)
    each = [*report.figures.per_device, *(one for g in report.groups.values() for one in g.per_device)]
    body += f"<h2>Devices, on rows that nothing was chosen by</h2>{_devices(each)}"
    body += f"<h2>Settings</h2>{_settings(report)}"
    return document(f"A fleet on {report.data}", body, STYLE)


def _compared(report: SimulationReport) -> str:
    """One line for each way to learn: on the devices' own rows, and on those of devices that took no part."""
    final, alone, central = report.figures.final, report.alone, report.central
    ways: list[tuple[str, AccuracySpread | ComparedFigures | None, float | None]] = [
        ("each device alone", alone, None if alone is None else alone.unseen),
        ("the fleet's model", final.global_, final.unseen),
        ("what the devices serve", final.mixed, None),
        ("one model trained on all rows together", central, None if central is None else central.unseen),
    ]
    rows = [
        (name, percent(found.mean), percent(found.worst), percent(unseen))
        for name, found, unseen in ways
        if found is not None
    ]
    return table(["trained by", "own rows, mean", "own rows, worst", "devices that took no part"], rows)


def _settings(report: SimulationReport) -> str:
    """Every setting of the simulation, as in `edged fleet sim` and the coordinator's configuration."""
    rows = [("data", report.data)] + [
        (name, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
        for name, value in report.plan.items()
    ]
    return table(["setting", "value"], [(name, value or "none") for name, value in rows])


def _strategy(plan: Mapping[str, Any]) -> str:
    masked = ["under masks"] if plan["masks"] else []
    if plan["kind"] == "statistics":
        return ", ".join(["sums for the last layer", *masked])
    how = f"trimmed mean ({percent(plan['trim'])} at either end)"
    text = how if plan["reduce"] == "trimmed_mean" else str(plan["reduce"])
    more = [
        f"{words} {plan[key]:g}"
        for key, words in (
            ("proximal", "FedProx with mu"),
            ("dynamic", "FedDyn with alpha"),
            ("noise", "noise"),
        )
        if plan[key]
    ]
    more += ["opposed devices left out"] if plan["opposed"] == "leave_out" else []
    return ", ".join([text, f"updates clipped at {plan['clip_norm']:g}", *more, *masked])


def _sentence(report: SimulationReport) -> str:
    final, sent, central = report.figures.final, report.figures.bytes, report.central
    rounds = len(report.figures.rounds)
    text = f"{report.devices} devices, {rounds} {'round' if rounds == 1 else 'rounds'}."
    text += f" Strategy: {_strategy(report.plan)}."
    if final.unseen is not None:
        text += f" On rows of those that took no part the fleet's model has {percent(final.unseen)}"
        text += f", one trained on all rows together {percent(central.unseen)}." if central else "."
    if final.global_ is not None and final.mixed is not None:
        alone, mixed = (
            f"{percent(spread.mean)} (worst {percent(spread.worst)})"
            for spread in (final.global_, final.mixed)
        )
        text += f" On the devices themselves it has {alone}, what they serve {mixed}."
    if sent.ratio is not None:
        text += f" An update takes {size(sent.mean)}, {percent(sent.ratio)} of float32."
    if report.poisoned:
        count = len(report.poisoned)
        text += f" {count} {'device does' if count == 1 else 'devices do'} harm ({report.plan['attack']})."
    return text


def _chart(rounds: Sequence[RoundFigures]) -> str:
    numbers = [entry.round for entry in rounds]
    lines = [
        ChartLine("global", "global", [_mean(entry.global_) for entry in rounds]),
        ChartLine("served", "mixed", [_mean(entry.mixed) for entry in rounds]),
        ChartLine("served, worst device", "worst", [_worst(entry.mixed) for entry in rounds]),
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
    head = ["round", "accepted", "updates", "seconds", "no part", "global", "worst", "served", "worst"]
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
    return table(["device", "rows", "global", "served", "share of global", "rounds", "bytes sent"], rows)


def run(plan: SimulationPlan, out: Path | None) -> SimulationReport:
    """The report, also written as `out`/report.json and `out`/index.html; StorageError where it cannot be."""
    logs.configure("error", "console")
    report = simulate(plan, lambda text: sys.stderr.write(f"{text}\n"))
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            content = json.dumps(json_ready(report.to_json()), indent=1)
            (out / "report.json").write_text(content, encoding="utf-8")
            (out / "index.html").write_text(page(report), encoding="utf-8")
        except OSError as problem:
            raise StorageError(f"cannot be written: {problem.strerror}", where=str(out)) from problem
    return report


def lines_of(report: SimulationReport) -> list[str]:
    """Format the report for people."""
    final, sent = report.figures.final, report.figures.bytes
    lines = [f"{report.devices} devices, {len(report.figures.rounds)} rounds, {report.seconds:.0f} s"]
    if final.unseen is not None:
        lines.append(f"those that took no part: {final.unseen:.1%}")
    if report.central is not None and isfinite(report.central.unseen):
        lines.append(f"one model on all rows: {report.central.unseen:.1%}")
    if (found := report.closed_form) is not None:
        lines.append(
            f"solved for from all rows: {found.unseen:.1%}, the fleet's parameters differ by at most"
            f" {found.difference:.1g}"
        )
    lines += [
        f"{kind}: {spread.mean:.1%} in the mean, worst {spread.worst:.1%}"
        for kind, spread in (("global", final.global_), ("served", final.mixed))
        if spread is not None
    ]
    if (alone := report.alone) is not None:
        lines.append(f"each device alone: {alone.mean:.1%} in the mean, worst {alone.worst:.1%}")
    for name, group in report.groups.items():
        if (spread := group.final.global_) is not None:
            lines.append(f"{name}: {spread.mean:.1%} in the mean, worst {spread.worst:.1%}")
    if sent.mean is not None and sent.ratio is not None:
        lines.append(f"an update: {sent.mean:,.0f} bytes, {sent.ratio:.1%} of float32")
    return lines
