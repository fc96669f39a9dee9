"""What the commands show a person: tables and lines on stderr or stdout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from edged.charts.figures import change, figure, percent, plain, size
from edged.domain.text import when as _when

if TYPE_CHECKING:
    from edged.bundles.build import BuildCheck
    from edged.bundles.export.export import ExportReport
    from edged.bundles.export.parameters import ParametersReport
    from edged.bundles.inspect import BundleReport, Parameter
    from edged.cli.doctor import CheckResult
    from edged.device.admin.importing import ImportReport
    from edged.device.admin.local_training import JudgedRun
    from edged.device.admin.models import ListedModel
    from edged.device.reports import StreamLine
    from edged.domain.audit_chain import LoggedEntry
    from edged.domain.bundle_contents import LossOptions
    from edged.domain.json_fields import JsonObject
    from edged.workbench.evaluation.figures import DetectionFigures, EvaluationComparison, EvaluationReport

ALARMS_SHOWN = 8
MOMENTS = ("ts", "created", "since", "ended", "started")  # fields that are Unix seconds
_AUDIT_COLUMNS = ("seq", "previous", "ts", "what", "command", "who", "trigger", "id", "verdict")
_NOTHING: tuple[object, ...] = (None, {}, [])
EVALUATED = (
    "samples", "scored", "trainings", "promotions", "rejections", "rollbacks", "labels_used", "forgetting",
    "engine", "seconds", "train_seconds", "peak_rss_mb",
)  # fmt: skip
out = Console()
err = Console(stderr=True)


def new_table(title: str, columns: Sequence[str]) -> Table:
    """An empty table with these heads, without lines around its cells."""
    return Table(*columns, title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)


def show_pairs(title: str, values: Mapping[str, Any]) -> None:
    """Names and values, one a line."""
    out.print(pairs(title, values))


def pairs(title: str, values: Mapping[str, Any]) -> Table:
    """Names and values, one a line, as they are: what looks like a style to rich is none."""
    table = new_table(title, ("", ""))
    table.show_header = False
    for name, value in values.items():
        table.add_row(name, Text(_as_text(name, value)))
    return table


def _as_text(name: str, value: Any) -> str:
    """One value: times and sizes as people read them."""
    if isinstance(value, Mapping):
        return ", ".join(f"{inner.replace('_', ' ')} {_as_text(inner, one)}" for inner, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_as_text(name, one) for one in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else str(value)
    if name in MOMENTS:
        return _when(value)
    if name == "bytes":
        return size(value)
    return figure(name, value) if isinstance(value, float) else f"{value:,}"


def show_status(values: JsonObject) -> None:
    """Print the result of `edged status`, or what a device with several streams says of them."""
    from edged.device.reports import LocalStatus, StreamsState
    from edged.device.status_text import summary

    if "streams" in values:
        show_streams(StreamsState.from_json(values).streams)
        return
    show_pairs("edged", summary(LocalStatus.from_json(values)))


def show_streams(streams: Mapping[str, StreamLine]) -> None:
    """Print the result of `edged status` of several streams, one a line."""
    table = new_table("edged", ("stream", "state", "samples", "labels", "model", "trainings", "problem"))
    for name, line in streams.items():
        counts = map(plain, (line.samples, line.labels, line.model, line.runs))
        table.add_row(name, line.state, *counts, line.problem or "")
    out.print(table)


def show_training(judged: JudgedRun) -> None:
    """Print the result of `edged train`."""
    result, verdict = judged.result, judged.verdict
    shown = {
        "run": result.run,
        "samples": result.samples,
        "steps": result.steps,
        "loss": f"{plain(result.loss_first)} → {plain(result.loss_last)}",
        "engine": result.engine,
        "seconds": result.seconds,
        "learned": judged.summary,
        "verdict": "accepted" if verdict.accepted else "rejected",
        "reasons": "; ".join(verdict.reasons),
        "champion": judged.champion,
    }
    show_pairs("training run", shown)


def show_audit(entries: Sequence[LoggedEntry]) -> None:
    """Print the entries of the audit log, one a line."""
    table = new_table("audit log", ("entry", "time", "what", "by", "about"))
    for logged in entries:
        entry, number = logged.entry, logged.previous.seq + 1
        by = entry.trigger if entry.who is None else entry.who.key or entry.who.via
        about = {name: _told(value) for name, value in logged.to_json().items() if name not in _AUDIT_COLUMNS}
        text = "; ".join(f"{name} {told}" for name, told in about.items() if told)
        table.add_row(str(number), _when(entry.ts), entry.command or entry.what, Text(by or ""), Text(text))
    out.print(table)


def _told(value: object) -> str:
    """A value of JSON in words: fields by name without those that say nothing, items of lists in a row.

    >>> _told({"first_offset": 1, "bundle": None, "labels": [1, 2]})
    'first_offset 1, labels 1 2'
    """
    if isinstance(value, dict):
        return ", ".join(f"{name} {_told(inner)}" for name, inner in value.items() if inner not in _NOTHING)
    if isinstance(value, list):
        return " ".join(map(_told, value))
    return "" if value is None else str(value)


def show_models(listed: Sequence[ListedModel]) -> None:
    """Print the result of `edged models CONFIG list`."""
    table = new_table("models", ("version", "status", "parent", "source", "samples", "gain", "created"))
    for one in listed:
        record = one.record
        mark = " ◀ champion" if one.champion else ""
        mark += " (pinned)" if record.pinned else ""
        table.add_row(
            f"{record.version}{mark}",
            record.status,
            plain(record.parent),
            record.source,
            plain(record.data.samples),
            plain(record.metrics.numbers.get("gain")),
            _when(record.created),
        )
    out.print(table)


def show_evaluation(report: EvaluationReport) -> None:
    """Print the report of `edged evaluate`."""
    names = list(report.metric)
    table = new_table("prequential evaluation", ("", *names))
    lines = {"adapted": report.metric, "frozen": report.frozen, "last label": report.no_change}
    for title, line in lines.items():
        table.add_row(title, *(figure(name, line.get(name)) for name in names))
    out.print(table)
    if report.anomaly is not None:
        show_pairs("", _alarms(report.anomaly.adapted))
    counted = {name: getattr(report, name) for name in EVALUATED}
    if report.forgetting is not None:  # of accuracies, or of errors
        counted["forgetting"] = change(names[0], report.forgetting)
    show_pairs("", _kept_promises(report) | counted)
    show_warnings(report.warnings)


def _kept_promises(report: EvaluationReport) -> dict[str, Any]:
    """How far confidence was from the truth, and how often sets contained it."""
    error, found = report.calibration_error, report.coverage
    shown = {} if error is None else {"calibration_error": percent(error)}
    if found is None:
        return shown
    share = f"{percent(found.covered)} (promised {percent(found.promised)})"
    return shown | {"covered": share, "set size": found.size}


def show_warnings(warnings: Sequence[str]) -> None:
    """Print on stderr what a person should know of the data."""
    for warning in warnings:
        show_note(f"warning: {warning}")


def _alarms(found: DetectionFigures) -> dict[str, Any]:
    """How many alarms there were, and where they began and ended."""
    spans = [f"{a.row}–{'' if a.end is None else a.end}" for a in found.alarms]
    shown = ", ".join(spans[:ALARMS_SHOWN]) + (", …" if len(spans) > ALARMS_SHOWN else "")
    return {"alarms": f"{len(spans)}: {shown}" if spans else "none", "excluded": found.flagged}


def show_comparison(comparison: EvaluationComparison) -> None:
    """Print the ranking of several configurations."""
    from edged.workbench.evaluation.comparison import summary

    what, names = comparison.metric, list(next(iter(comparison.reports.values())).metric)
    table = new_table("ranking", ("", "", *names, "difference", "95 % interval", "found"))
    for row in comparison.ranking:
        metric = comparison.reports[row.name].metric
        interval = f"{change(what, row.low)} to {change(what, row.high)}"
        differs = (change(what, row.difference), interval) if row.rank > 1 else ("", "")
        metrics = (figure(name, metric.get(name)) for name in names)
        table.add_row(str(row.rank), escape(row.name), *metrics, *differs, row.found)
    out.print(table)
    say(summary(comparison))
    show_warnings(next(iter(comparison.reports.values())).warnings)


def show_note(text: str) -> None:
    """Print one line on stderr."""
    err.print(text, highlight=False, markup=False, soft_wrap=True)


def show_bundle(report: BundleReport) -> None:
    """Print the result of `edged artifacts build` and `inspect`."""
    loss = report.loss + _settings(report.loss_options)
    say(f"{report.path}: {loss}, {report.optimizer}, for the {report.engine} engine")
    _show_contents(report, {"fingerprint": report.fingerprint})
    _show_notes(report.notes or ())


def _settings(options: LossOptions) -> str:
    """Options of a loss in words, behind a comma each."""
    return "".join(f", {name.replace('_', ' ')} {_listed(v)}" for name, v in options.to_json().items())


def _listed(value: Any) -> str:
    return ":".join(f"{part:g}" for part in (value if isinstance(value, list) else [value]))


def show_check(model: Path, report: BuildCheck) -> None:
    """Print the findings of `edged artifacts check`."""
    can = "can train it" if report.ok else "cannot train it as it is"
    say(f"{model}: the {report.engine} engine {can}")
    for finding in report.findings:
        where = f"node {finding.node}: " if finding.node else ""
        operator = f"operator {finding.operator} " if finding.operator else ""
        remedy = f" → {finding.remedy}" if finding.remedy else ""
        say(f"{where}{operator}{finding.what}{remedy}")
    _show_notes(report.notes)
    if report.bundle is not None:
        _show_contents(report.bundle, {})


def _show_contents(report: BundleReport, more: Mapping[str, str]) -> None:
    """The parameters of a bundle, and the sizes of its files; `more` comes behind them."""
    table = new_table("", ("parameter", "shape", "size", ""))
    for row in report.parameters:
        table.add_row(row.name, _shape(row), f"{row.size:,}", _trained(row))
    table.add_row("total", "", f"{report.trainable_size:,}", "trained")
    table.add_row("", "", f"{report.frozen_size:,}", "frozen")
    out.print(table)
    sizes = {file.name: size(file.bytes) for file in report.files}
    show_pairs("", {**_names_of(report), **sizes, "total": size(report.bytes), **more})


def say(line: str) -> None:
    """One line as it is, however wide the terminal."""
    out.print(line, highlight=False, markup=False, soft_wrap=True)


def _show_notes(notes: Sequence[str]) -> None:
    for note in notes:
        say(f"note: {note}")


def _names_of(report: BundleReport) -> dict[str, str]:
    """Names of inputs and outputs, as far as they are known."""
    shown = {}
    for what, tensor in (("inputs", report.input), ("outputs", report.output)):
        units = [f" ({unit})" if unit else "" for unit in tensor.units] or [""] * len(tensor.names)
        names = tensor.names or [""] * len(units)
        if names:
            shown[what] = ", ".join(
                f"{name}{unit}".strip() for name, unit in zip_longest(names, units, fillvalue="")
            )
    return shown


def show_export(report: ExportReport) -> None:
    """Print the result of `edged artifacts export`."""
    before, after = report.us
    shown = {
        "size": f"{size(report.bytes)}, before {size(report.source_bytes)}",
        "outputs": ", ".join(report.outputs),
        "one row": f"{after:g} µs here, before {before:g} µs",
    }
    if report.difference is not None:
        largest = f"with outputs up to {report.largest:.3g}"
        shown["difference"] = f"at most {report.difference:.3g}, {largest}"
    if report.float32_layers:
        shown["not quantised"] = ", ".join(report.float32_layers)
    show_pairs(str(report.file), shown)


def show_parameters(bundle: str, report: ParametersReport) -> None:
    """Print the result of `edged artifacts params`."""
    table = new_table(bundle, ("parameter", "shape", "min", "mean", "max", "std", ""))
    for row in report.parameters:
        figures = (f"{value:.4g}" for value in (row.min, row.mean, row.max, row.std))
        table.add_row(row.name, _shape(row), *figures, _trained(row))
    out.print(table)
    show_pairs("", report.properties)


def _shape(row: Parameter) -> str:
    return "×".join(map(str, row.shape)) or "scalar"


def _trained(row: Parameter) -> str:
    return "trained" if row.trainable else "frozen"


def show_findings(findings: Sequence[CheckResult]) -> None:
    """Print the findings of `edged doctor`."""
    marks = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "error": "[red]error[/]"}
    for finding in findings:
        remedy = f" → {finding.remedy}" if finding.remedy else ""
        line = escape(f" {finding.what}: {finding.result}{remedy}")
        out.print(marks[finding.level] + line, highlight=False, soft_wrap=True)


def show_import(report: ImportReport) -> None:
    """Print the result of `edged import`."""
    for file in report.files:
        before = ": was imported before" if file.before else ""
        say(f"{file.file}: {file.samples:,} samples{before}")
        show_warnings(file.warnings)
