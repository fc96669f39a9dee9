"""What a person sees of the demo: a live picture on a terminal, plain lines elsewhere.

Everything is drawn from one `DemoState`, so that any moment can be drawn again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import TextIOWrapper
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType, RenderResult
    from typing_extensions import Self

    from edged.workbench.demo.summary import MachinesSummary

ADAPTED, FROZEN, SWAP, PHASE = "bold green", "bold red", "cyan", "yellow"
PLAIN_EVERY = 5.0
CHART_ROWS = 9
EVENTS = 4

_AXIS = 6  # columns left of the chart: "100 % "
_BESIDE_CHART = 15  # lines of the picture that are not chart, and one for the cursor


@dataclass(frozen=True)
class DemoState:
    """One moment of the demo.

    `elapsed` and `seconds` (planned) are seconds; `rate` samples a second. `frozen` and `adapted` are
    shares of right predictions, one a window of the stream, in order; NaN where none was scored.
    `swaps` are the windows in which a new model took over; `changes` the windows in which the plant
    changed, with the name of what began. `windows` is how many windows there will be in the end. `machines`
    is known at the end, where there are several.
    """

    elapsed: float
    seconds: float
    samples: int
    predictions: int
    dropped: int
    labels: int
    rate: float
    phase: str
    frozen: list[float]
    adapted: list[float]
    swaps: list[int]
    version: int
    training: str
    trainings: int
    rollbacks: int
    events: list[str]
    engine: str
    broker: str
    changes: list[tuple[int, str]] = field(default_factory=list)
    windows: int = 60
    machines: MachinesSummary | None = None


class Screen:
    """Shows state after state: redrawn in place on a terminal, a line now and then elsewhere.

    A context manager: `show_line` and `show` within it, `finish` after it. It draws on `console`; when that
    is absent on stdout, or with `to_stderr` on stderr, which keeps stdout free for `--json`.
    """

    def __init__(self, *, to_stderr: bool = False, console: Console | None = None) -> None:
        self._console = console or Console(stderr=to_stderr, highlight=False)
        _survive_old_encodings(self._console)
        self._live: Live | None = None
        self._printed = -math.inf
        self._events: list[str] = []

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            # Redrawn by `show` alone: a refreshing thread would only draw the same again.
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show_line(self, what: str) -> None:
        """Show one line of progress before there is a state to show."""
        if self._live is not None:
            self._live.update(Text(what), refresh=True)
        else:
            self._line(what)

    def show(self, state: DemoState) -> None:
        """Draw this moment; without a terminal, its new events and every few seconds a line."""
        if self._live is not None:
            self._live.update(picture(state), refresh=True)
            return
        for event in _new(self._events, state.events):
            self._line(f"{state.elapsed:5.0f} s  {event}")
        self._events = list(state.events)
        if state.elapsed - self._printed >= PLAIN_EVERY:
            self._printed = state.elapsed
            self._line(progress_line(state))

    def finish(self, state: DemoState) -> None:
        """Print the summary; it stays."""
        self._console.print(summary(state))

    def _line(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


def _survive_old_encodings(console: Console) -> None:
    # Where there is no UTF-8 the chart is drawn in ASCII; what else has no letter there becomes a "?".
    if isinstance(console.file, TextIOWrapper) and not console.encoding.startswith("utf"):
        console.file.reconfigure(errors="replace")


def _new(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """What was added to a list of which only the end is kept."""
    for skip in range(len(before) + 1):
        kept = list(before[skip:])
        if list(now[: len(kept)]) == kept:
            return list(now[len(kept) :])
    return list(now)


def progress_line(state: DemoState) -> str:
    """Return one line for logs and pipes."""
    return (
        f"{state.elapsed:5.0f} s  {state.samples:,} samples, {state.dropped:,} unanswered | "
        f"frozen {_percent(_last(state.frozen))}, adapted {_percent(_last(state.adapted))} | "
        f"model {state.version} | {state.phase}"
    )


# ---- the picture ---------------------------------------------------------------------------------


def picture(state: DemoState) -> RenderableType:
    """The whole live picture, for at least 80 columns and 24 lines; smaller ones are cut."""
    left = max(0.0, state.seconds - state.elapsed)
    title = f"edged demo · {state.elapsed:.0f} s, {left:.0f} s to go" if left else "edged demo"
    body = Group(_Chart(state), Text(), _counters(state), Text(), *_events(state))
    return Panel(body, title=title, title_align="left", padding=(0, 1))


def _counters(state: DemoState) -> Table:
    engine = f", {state.engine}" if state.engine else ""
    table = Table.grid(expand=True, padding=(0, 2))
    for ratio in (7, 7, 5):
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=ratio)
    figures = (
        ("samples", f"{state.samples:,} ({state.rate:,.0f}/s)"),
        ("predictions", f"{state.predictions:,}"),
        ("unanswered", f"{state.dropped:,}"),
        ("labels", f"{state.labels:,}"),
        ("model", f"{state.version}, {len(state.swaps)} swaps"),
        ("rollbacks", f"{state.rollbacks}"),
        ("trained", f"{state.trainings} times{engine}"),
        ("training", state.training),
        ("broker", state.broker),
    )
    cells = [Text.assemble((f"{name} ", "dim"), (value, "bold")) for name, value in figures]
    for row in range(0, len(cells), 3):
        table.add_row(*cells[row : row + 3])
    return table


def _events(state: DemoState) -> list[Text]:
    lines = [Text(event, no_wrap=True, overflow="ellipsis") for event in state.events[-EVENTS:]]
    return lines + [Text()] * (EVENTS - len(lines))


# ---- the chart -----------------------------------------------------------------------------------


class _Canvas:
    """Letter cells of two halves each, an upper and a lower one.

    Half blocks and dots are in every terminal's font, also on a console without a desktop.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._halves: dict[tuple[int, int], set[int]] = {}
        self._styles: dict[tuple[int, int], str] = {}

    def dot(self, x: int, y: int, style: str) -> None:
        """Set half row `y` from the top of column `x`; a line drawn later covers the earlier one."""
        cell = (y // 2, x)
        if self._styles.get(cell) != style:
            self._halves[cell] = set()
            self._styles[cell] = style
        self._halves[cell].add(y % 2)

    def line(self, row: int, marked: frozenset[int], *, ascii_only: bool) -> Text:
        """A row of letters; empty cells of the marked columns show where the plant changed."""
        text = Text(no_wrap=True, overflow="crop")
        cells = [
            self._cell(row, column, column in marked, ascii_only=ascii_only) for column in range(self.width)
        ]
        for style, run in groupby(cells, key=lambda cell: cell[1]):
            text.append("".join(letter for letter, _ in run), style)
        return text

    def _cell(self, row: int, column: int, marked: bool, *, ascii_only: bool) -> tuple[str, str]:
        style = self._styles.get((row, column))
        if style is None:
            return (_marks(ascii_only=ascii_only)[1], PHASE) if marked else (" ", "")
        halves = sum(half + 1 for half in self._halves[row, column])  # 1 upper, 2 lower, 3 both
        if style == FROZEN:
            return " '.:"[halves], style
        return "#" if ascii_only else " ▀▄█"[halves], style


def _marks(*, ascii_only: bool) -> tuple[str, str]:
    """Of a swap, and of a change of the plant."""
    return ("^", "|") if ascii_only else ("▲", "┊")


def _legend(state: DemoState, *, ascii_only: bool) -> Text:
    swap, change = _marks(ascii_only=ascii_only)
    full = "##" if ascii_only else "▄▄"
    return Text.assemble(
        (f"{full} adapted {_percent(_last(state.adapted))}   ", ADAPTED),
        (f".. frozen {_percent(_last(state.frozen))}   ", FROZEN),
        (f"{swap} model swapped   ", SWAP),
        (f"{change} plant changed", PHASE),
        no_wrap=True,
        overflow="crop",
    )


class _Chart:
    """Accuracy over time: adapted as a full line, frozen as a dotted one, marks below."""

    def __init__(self, state: DemoState) -> None:
        self._state = state
        self._floor = _floor([*state.frozen, *state.adapted])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(10, options.max_width - _AXIS)
        height = max(3, min(CHART_ROWS, console.height - _BESIDE_CHART))
        canvas = _Canvas(width, height)
        self._draw(canvas, self._state.frozen, FROZEN)
        self._draw(canvas, self._state.adapted, ADAPTED)
        changes = [(self._column(at, width), name) for at, name in self._state.changes]
        marked = frozenset(column for column, _ in changes if column > 0)
        yield _legend(self._state, ascii_only=options.ascii_only)
        for row in range(height):
            yield Text(self._label(row, height)) + canvas.line(row, marked, ascii_only=options.ascii_only)
        yield Text(" " * _AXIS) + self._swaps(width, ascii_only=options.ascii_only)
        yield Text(" " * _AXIS) + _names(changes, width)

    def _windows(self) -> int:
        return max(self._state.windows, len(self._state.adapted), 1)

    def _column(self, window: int, width: int) -> int:
        return min(width - 1, window * width // self._windows())

    def _draw(self, canvas: _Canvas, values: Sequence[float], style: str) -> None:
        before: int | None = None
        for window, value in enumerate(values):
            y = self._height(value, 2 * canvas.height)
            if y is not None:
                start, end = (at * canvas.width // self._windows() for at in (window, window + 1))
                between = range(min(before, y), max(before, y)) if before is not None else range(0)
                for step in between if start < end else ():
                    canvas.dot(start, step, style)
                for x in range(start, end):
                    canvas.dot(x, y, style)
            before = y

    def _height(self, value: float, dots: int) -> int | None:
        if not math.isfinite(value):
            return None
        share = (value - self._floor) / (1.0 - self._floor)
        return round((1.0 - min(max(share, 0.0), 1.0)) * (dots - 1))

    def _label(self, row: int, height: int) -> str:
        if row in (0, height - 1) or (row == height // 2 and height % 2):
            return f"{100 * (1 - (1 - self._floor) * row / (height - 1)):3.0f} % "
        return " " * _AXIS

    def _swaps(self, width: int, *, ascii_only: bool) -> Text:
        columns = {self._column(window, width) for window in self._state.swaps}
        mark = _marks(ascii_only=ascii_only)[0]
        return Text("".join(mark if i in columns else " " for i in range(width)), SWAP, no_wrap=True)


def _floor(values: Sequence[float]) -> float:
    """Where the axis begins: a round share below all values, moved seldom, so that nothing jumps."""
    low = min((v for v in values if math.isfinite(v)), default=1.0)
    return next(floor for floor in (0.6, 0.4, 0.2, 0.0) if low >= floor or floor == 0.0)


def _names(changes: Sequence[tuple[int, str]], width: int) -> Text:
    """Names of the phases under their beginnings, cut where the next one begins."""
    ends = [column for column, _ in changes[1:]] + [width] * bool(changes)
    line = ""
    for (column, name), end in zip(changes, ends, strict=True):
        room = end - column - 1
        if room >= min(len(name), 4):
            line = line.ljust(column) + (name if len(name) <= room else f"{name[: room - 1].rstrip()}…")
    return Text(line[:width], PHASE, no_wrap=True, overflow="crop")


# ---- the summary ---------------------------------------------------------------------------------


def summary(state: DemoState) -> RenderableType:
    """The end: adapted beside frozen, the counters, and one sentence that says what happened."""
    table = Table(title="edged demo", title_justify="left", box=None, header_style="bold", pad_edge=False)
    table.add_column("share of right predictions", no_wrap=True)
    for name in ("overall", "last quarter", "worst window"):
        table.add_column(name, justify="right")
    for name, values, style in (("adapted", state.adapted, ADAPTED), ("frozen", state.frozen, FROZEN)):
        table.add_row(name, *(_percent(v, 1) for v in _figures(values)), style=style)
    return Group(
        table, Text(), *(Text(line) for line in _facts(state)), Text(), Text(_sentence(state), "bold")
    )


def _facts(state: DemoState) -> list[str]:
    stream = f"{state.samples:,} samples, {state.predictions:,} predictions, {state.dropped:,} dropped"
    learning = f"{_many(state.trainings, 'training run')}, {_many(len(state.swaps), 'swap')}"
    return [
        f"{stream}, {state.labels:,} labels in {state.elapsed:.0f} s",
        f"{learning}, {_many(state.rollbacks, 'rollback')}; engine {state.engine}, broker {state.broker}",
        *([] if state.machines is None else [_machines(state.machines)]),
    ]


def _machines(summary: MachinesSummary) -> str:
    """How the pumps did."""
    found = (summary.adapted, summary.frozen)
    adapted, frozen = (
        f"{_percent(one['mean'], 1)} in the mean, {_percent(one['worst'], 1)} the worst pump" for one in found
    )
    return f"{summary.count} pumps: {adapted}; frozen {frozen}"


def _figures(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean over all windows, mean over the last quarter of them, and the worst one."""
    known = [v for v in values if math.isfinite(v)]
    return _mean(known), _mean(known[-max(1, len(known) // 4) :]), min(known, default=math.nan)


def _sentence(state: DemoState) -> str:
    frozen, adapted = _figures(state.frozen)[1], _figures(state.adapted)[1]
    if math.isnan(frozen) or math.isnan(adapted):
        return "The demo ended before anything could be compared."
    known = [v for v in state.frozen if math.isfinite(v)]
    first = _mean(known[: max(1, len(known) // 10)])
    went = f"fell from {_percent(first)} to" if first - frozen >= 0.02 else "stood at"
    gain = 100 * (adapted - frozen)
    if gain >= 1:
        ending = f"the one that kept learning ended at {_percent(adapted)}"
    elif gain > -1:
        ending = f"the one that kept learning did as well ({_percent(adapted)})"
    else:
        ending = f"the one that kept learning did worse ({_percent(adapted)})"
    return f"The frozen model {went} {_percent(frozen)} right; {ending}, {_cost(state)}."


def _cost(state: DemoState) -> str:
    lost = (
        "no prediction was dropped" if state.dropped == 0 else f"{_many(state.dropped, 'prediction')} dropped"
    )
    return f"with {_many(len(state.swaps), 'swap')} while it was serving, and {lost}"


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _last(values: Sequence[float]) -> float:
    return values[-1] if values else math.nan


def _percent(share: float, digits: int = 0) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.{digits}f} %"
