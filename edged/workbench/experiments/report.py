"""A recipe run as one HTML page that needs nothing else: ranking, intervals, learning curves, the winner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from edged.charts.experiments import COLOURED, Curve, SeedDots, confusion, curves, histogram, legend, whiskers
from edged.charts.figures import SHARES, percent, plain, size
from edged.charts.html import document, table
from edged.domain.training.message import Message
from edged.workbench.experiments.ranking import FailedRecipe, RankedRecipe

if TYPE_CHECKING:
    Formatter = Callable[[float | None], str]

ABBREVIATED = {"mae": "MAE", "rmse": "RMSE", "r2": "R²", "auroc": "AUROC"}
LONGEST = 25  # rows of dots that are shown; the table has all


@dataclass(frozen=True)
class WrittenWinner(Message):
    """Where the winner's configuration and bundle are, and the seed of its training."""

    config: str
    bundle: str
    seed: int


@dataclass(frozen=True)
class RecipeReport(Message):
    """What a recipe run has come to: `report.json` is this as JSON.

    `rows` counts the samples of each part, `gap` those left out between two; `written` is None where nothing
    was to be.
    """

    name: str
    data: str
    task: str
    metric: str
    higher_is_better: bool
    rows: Mapping[str, int]
    gap: int
    warnings: tuple[str, ...]
    seeds: int
    trials: int
    jobs: int
    engine: str
    ranking: tuple[RankedRecipe, ...]
    failed: tuple[FailedRecipe, ...]
    written: WrittenWinner | None
    seconds: float


def page(report: RecipeReport) -> str:
    """The page as HTML text, from the report with its curves."""
    rows = report.ranking
    formatter = percent if report.metric in SHARES else plain
    sections = [_failures(report)]
    if rows:
        sections = [
            _lead(report, formatter),
            _intervals(report, formatter),
            _ranking(report),
            _curves(report, formatter),
            _winner(rows[0], report.metric, formatter),
            *sections,
        ]
    style = resources.files("edged.workbench.experiments").joinpath("page.css").read_text(encoding="utf-8")
    title = f"{report.data}: {report.name}"
    return document(title, "".join([*sections, _settings(report)]), style)


def _name(metric: str) -> str:
    return ABBREVIATED.get(metric, metric.replace("_", " "))


def _title(metric: str) -> str:
    name = _name(metric)
    return name[0].upper() + name[1:]


def _lead(report: RecipeReport, formatter: Formatter) -> str:
    """What came of it, in a few sentences."""
    rows, metric = report.ranking, report.metric
    first = rows[0]
    found, test = first.validation[metric], first.test
    seeds = f"{report.seeds} seed{'s' * (report.seeds > 1)}"
    interval = f"{formatter(found.low)} to {formatter(found.high)}"
    sure = f", 95 % interval {interval} from {seeds} and the samples judged"
    text = (
        f"<b>{escape(first.recipe.name)}</b> is first of {len(rows)}: {_name(metric)} "
        f"<b>{formatter(found.mean)}</b> on the validation part{sure if found.known else ''}"
    )
    text += f"; {formatter(test[metric].mean)} on the test part, which decides nothing." if test else "."
    near = sum(row.clear is False for row in rows)
    if near:
        others = "other is" if near == 1 else "others are"
        text += f" {near} {others} not clearly worse: the intervals meet."
    return f"<p class=lead>{text}</p>"


def _intervals(report: RecipeReport, formatter: Formatter) -> str:
    metric = report.metric
    rows = [
        SeedDots(
            f"{row.rank}. {row.recipe.name}",
            row.validation[metric].mean,
            row.validation[metric].low,
            row.validation[metric].high,
            row.validation[metric].seeds,
            None if row.test is None else row.test[metric].mean,
        )
        for row in report.ranking[:LONGEST]
    ]
    direction = "higher is better" if report.higher_is_better else "lower is better"
    note = (
        "A dot is the mean over seeds, a line its 95 % interval: how far chance in training, and in which "
        "samples are in the validation part, can move it. The pale dots are the seeds; the open diamond is "
        "the mean on the test part, for information."
    )
    more = len(report.ranking) - len(rows)
    note += f" The best {LONGEST} of {len(report.ranking)}." if more else ""
    chart = whiskers(rows, _name(metric), formatter)
    return f"<h2>{_title(metric)} ({direction})</h2>{_scrolled(chart)}<p class=note>{note}</p>"


def _ranking(report: RecipeReport) -> str:
    metric, rows = report.metric, report.ranking
    others = [name for name in rows[0].validation if name != metric]
    tested = rows[0].test is not None
    head = ["", "recipe", _name(metric), "± 95 %", *([f"{_name(metric)}, test"] if tested else [])]
    head += [*map(_name, others), "step", "memory", "model", "bundle", "weights", "epochs", "time"]
    body = [
        (
            str(row.rank), row.recipe.name, *_own_figure(row, metric),
            *(_formatter(name)(row.validation[name].mean) for name in others),
            f"{row.step_us:,.0f} µs", size(row.peak_bytes), size(row.model_bytes),
            size(row.bundle_bytes), f"{row.parameters:,}", _range(row.epochs),
            f"{row.seconds:.1f} s",
        )
        for row in rows
    ]  # fmt: skip
    note = (
        "Figures are means over seeds on the validation part. Memory is the most that a training process "
        "took, without the building of its bundle; a step is that of its fastest epoch "
        "on this machine, with other trainings beside it."
    )
    return f"<h2>Ranking</h2>{table(head, body, 'ranking')}<p class=note>{note}</p>"


def _own_figure(row: RankedRecipe, metric: str) -> list[str]:
    formatter, found = _formatter(metric), row.validation[metric]
    half = formatter(found.high - found.mean) if found.known else "–"
    return [formatter(found.mean), half, *([formatter(row.test[metric].mean)] if row.test else [])]


def _formatter(name: str) -> Formatter:
    return percent if name in SHARES else plain


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}–{high}"


def _curves(report: RecipeReport, formatter: Formatter) -> str:
    rows, what = report.ranking, _name(report.metric)
    names = [row.recipe.name for row in rows]
    judged = [Curve(row.recipe.name, i, _mean(row, "validation_metric")) for i, row in enumerate(rows)]
    judged.append(_training(rows[0], "train_metric"))
    loss = [Curve(row.recipe.name, i, _mean(row, "validation_loss")) for i, row in enumerate(rows)]
    loss.append(_training(rows[0], "train_loss"))
    charts = "".join(
        f"<div><h3>{name}</h3>{chart}</div>"
        for name, chart in (
            (_title(report.metric), curves(judged, what, formatter)),
            ("Loss", curves(loss, "loss", plain)),
        )
    )
    note = (
        "Means over the seeds that went as far, on the validation part; the thin line is the winner on the "
        "training part. Point at an epoch for its values."
    )
    key = legend(names, max(0, len(names) - COLOURED))
    return f'<h2>Learning curves</h2>{key}<div class="pair">{charts}</div><p class=note>{note}</p>'


def _training(winner: RankedRecipe, name: str) -> Curve:
    return Curve(f"{winner.recipe.name}, training", 0, _mean(winner, name), train=True)


def _mean(row: RankedRecipe, name: str) -> list[float]:
    """The mean over those seeds that went as far, epoch by epoch."""
    values = [[float(getattr(point, name)) for point in curve] for curve in row.curves]
    longest = max(map(len, values))
    at = [[line[epoch] for line in values if len(line) > epoch] for epoch in range(longest)]
    return [sum(points) / len(points) for points in at]


def _winner(row: RankedRecipe, metric: str, formatter: Formatter) -> str:
    shown = row.shown
    where = f"on the {shown.rows:,} samples of the {shown.part} part"
    if shown.classes is not None and shown.confusion is not None:
        chart = confusion(shown.classes, shown.confusion)
        what = f"What it answers {where}, true classes down; the darker, the larger the share of the class."
        return f"<h2>Answers of the winner</h2>{_scrolled(chart)}<p class=note>{what}</p>"
    unit = "in the target's unit" if shown.unit == "target" else "in standard deviations of each target"
    chart = histogram(shown.edges or (), shown.counts or (), f"answer minus target, {unit}", plain)
    figure = f"{_name(metric)} {formatter(row.validation[metric].mean)} on the validation part"
    note = f"Residuals {where}; the outermost bars hold what lies further out. {figure}."
    return f"<h2>Residuals of the winner</h2>{_scrolled(chart)}<p class=note>{escape(note)}</p>"


def _scrolled(chart: str) -> str:
    """A chart that phones scroll, so that its text can be read."""
    return f'<div class="wide" tabindex="0">{chart}</div>'


def _failures(report: RecipeReport) -> str:
    if not report.failed:
        return ""
    rows = [
        (row.recipe.name, ", ".join(map(str, reason.seeds)), reason.reason)
        for row in report.failed
        for reason in row.reasons
    ]
    head = ["recipe", "seeds", "why"]
    about = "<p>A recipe of which a training failed has no rank.</p>"
    return f"<h2>Failed</h2>{about}{table(head, rows, 'verdicts')}"


def _settings(report: RecipeReport) -> str:
    parts, rows = report.rows, report.ranking
    split = (
        f"in the order of time: {parts['train']:,} for training, {parts['validation']:,} for validation, "
        f"{parts['test']:,} for the test, {report.gap:,} left out between two"
    )
    trainings = f"{report.trials:,}, {report.jobs} at a time, {report.seeds} seeds of each recipe"
    facts = [
        ("data", f"{report.data}, {sum(parts.values()):,} samples used"),
        ("split", split),
        ("trainings", trainings),
        ("engine", rows[0].engine if rows else report.engine),
        ("time", f"{report.seconds:.0f} s"),
    ]
    if rows:
        facts += [
            (f"winner: {_name(key)}", _setting(value)) for key, value in vars(rows[0].recipe).items() if value
        ]
    return f"<h2>How it was done</h2>{table(['', ''], facts, 'plain')}"


def _setting(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
