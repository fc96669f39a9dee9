from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from edged.workbench.demo.screen import DemoState, Screen, picture, progress_line, summary
from edged.workbench.demo.summary import MachinesSummary

CHANGES = [(0, "commissioning"), (12, "product change"), (26, "sensors moved")]
FELL = [0.96] * 10 + [0.8] * 10 + [0.5] * 20
HELD = [0.96] * 10 + [0.94] * 10 + [0.93] * 20
STATE = DemoState(
    elapsed=42.0,
    seconds=60.0,
    samples=8000,
    predictions=7990,
    dropped=0,
    labels=7900,
    rate=178.4,
    phase="sensors moved",
    frozen=FELL,
    adapted=HELD,
    swaps=[3, 12, 25],
    version=4,
    training="run 9 (labels)",
    trainings=9,
    rollbacks=1,
    events=["model 3 promoted", "model 4 promoted"],
    engine="native",
    broker="mosquitto",
    changes=CHANGES,
)


MACHINES = MachinesSummary(
    count=100,
    frozen={"mean": 0.61, "worst": 0.402},
    adapted={"mean": 0.958, "worst": 0.863},
)


def terminal(*, width: int = 80, height: int = 24, no_color: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, no_color=no_color)


def drawn(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def lines(state: DemoState, *, width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(picture(state))
    return drawn(console).splitlines()


def chart(state: DemoState) -> list[str]:
    """The rows of the chart, without frame and axis."""
    return [line[8:-2] for line in lines(state)[2:11]]


def text(state: DemoState) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(summary(state))
    return " ".join(drawn(console).split())


# ---- the picture ---------------------------------------------------------------------------------


def test_the_picture_says_what_goes_on() -> None:
    picture_text = "\n".join(lines(STATE))
    for part in (
        "42 s, 18 s to go",
        "adapted 93 %",
        "frozen 50 %",
        "samples 8,000 (178/s)",
        "predictions 7,990",
        "unanswered 0",
        "model 4, 3 swaps",
        "rollbacks 1",
        "trained 9 times, native",
        "training run 9 (labels)",
        "broker mosquitto",
        "model 4 promoted",
        "product change",
        "sensors moved",
    ):
        assert part in picture_text


def test_the_adapted_line_runs_above_the_frozen_one() -> None:
    rows = chart(STATE)
    solid = [i for i, row in enumerate(rows) if re.search("[▀▄█]", row[30:40])]
    dotted = [i for i, row in enumerate(rows) if re.search("[.':]", row[30:40])]
    assert solid
    assert dotted
    assert max(solid) < min(dotted)


def test_the_chart_grows_to_the_right_and_never_moves() -> None:
    early = replace(STATE, frozen=FELL[:25], adapted=HELD[:25])
    for before, now in zip(chart(early), chart(STATE), strict=True):
        drawn_to = 25 * len(now) // 60
        assert now[:drawn_to] == before[:drawn_to]
        assert not re.search("[▀▄█.':]", before[drawn_to:])


def test_swaps_and_changes_are_marked_where_they_happened() -> None:
    rows = lines(STATE)
    swaps, names = rows[11][8:-2], rows[12][8:-2]
    width = len(swaps)
    assert [i for i, mark in enumerate(swaps) if mark == "▲"] == [at * width // 60 for at in STATE.swaps]
    for at, name in CHANGES:
        assert names.index(name[:9]) == at * width // 60


def test_more_windows_than_columns_are_all_in_the_chart() -> None:
    rows = chart(replace(STATE, frozen=[0.5] * 300, adapted=[0.9] * 299 + [0.0], swaps=[299]))
    assert rows[-1].rstrip().endswith("█") or rows[-1].rstrip().endswith("▄")


def test_windows_without_a_score_are_gaps() -> None:
    nan = float("nan")
    rows = chart(replace(STATE, frozen=[nan] * 40, adapted=[0.9, nan, nan, nan, nan, 0.9] + [nan] * 34))
    drawn_at = {i for row in rows for i, letter in enumerate(row) if letter in "▀▄█"}
    assert drawn_at == {0, 5, 6}  # 60 windows on 70 columns


shares = st.lists(st.floats(0, 1) | st.just(float("nan")), max_size=200)


@given(shares, shares, st.integers(20, 160), st.integers(5, 60), st.lists(st.text(max_size=300), max_size=9))
def test_any_state_fits_any_terminal(
    frozen: list[float], adapted: list[float], width: int, height: int, events: list[str]
) -> None:
    events = [re.sub(r"[^ -~]", "?", event) for event in events]
    state = replace(STATE, frozen=frozen, adapted=adapted, swaps=[len(adapted)], events=events)
    rows = lines(state, width=width, height=height)
    assert max(map(len, rows)) <= width
    assert len(rows) <= max(height - 1, 17)
    text(state)


def test_before_anything_is_known() -> None:
    empty = replace(STATE, frozen=[], adapted=[], swaps=[], changes=[], events=[], engine="", elapsed=0.0)
    assert "adapted –" in "\n".join(lines(empty))


def test_without_colours_nothing_is_lost() -> None:
    plain, coloured = terminal(no_color=True), terminal()
    plain.print(picture(STATE))
    coloured.print(picture(STATE))
    colour = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
    assert colour.search(drawn(coloured))
    assert not colour.search(drawn(plain))
    bare = re.compile(r"\x1b\[[0-9;]*m")
    assert bare.sub("", drawn(plain)) == bare.sub("", drawn(coloured))


def test_a_terminal_without_utf8_gets_ascii() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    console = Console(file=stream, force_terminal=True, width=80, height=24)
    with Screen(console=console) as screen:
        screen.show(STATE)
    screen.finish(STATE)
    stream.flush()
    shown = raw.getvalue().decode("ascii")
    assert "###" in shown
    assert "^ model swapped" in shown


# ---- live and plain ------------------------------------------------------------------------------


def test_live_draws_over_itself_without_clearing_the_screen() -> None:
    console = terminal()
    with Screen(console=console) as screen:
        screen.show_line("starting the broker")
        for elapsed in (1.0, 2.0, 3.0):
            screen.show(replace(STATE, elapsed=elapsed))
    screen.finish(STATE)
    shown = drawn(console)
    assert "starting the broker" in shown
    for remaining in ("59 s to go", "58 s to go", "57 s to go"):
        assert remaining in shown
    assert "\x1b[2J" not in shown
    assert shown.endswith("dropped.\x1b[0m\n")


def test_without_a_terminal_there_are_plain_lines() -> None:
    console = Console(file=io.StringIO(), width=80)
    with Screen(console=console) as screen:
        screen.show_line("commissioning")
        for elapsed in range(12):
            screen.show(replace(STATE, elapsed=float(elapsed)))
    shown = drawn(console).splitlines()
    assert "\x1b" not in drawn(console)
    assert shown[0] == "commissioning"
    assert [line for line in shown if "frozen 50 %" in line] == [
        progress_line(replace(STATE, elapsed=at)) for at in (0.0, 5.0, 10.0)
    ]
    assert sum("model 4 promoted" in line for line in shown) == 1


@given(st.lists(st.sampled_from(["promoted", "refused [x]", "rolled back"]), max_size=30), st.data())
def test_every_event_is_printed_once_while_only_the_last_are_kept(
    events: list[str], data: st.DataObject
) -> None:
    events = [f"{i} {event}" for i, event in enumerate(events)]
    console = Console(file=io.StringIO(), width=80)
    with Screen(console=console) as screen:
        seen = 0
        while seen < len(events):
            seen = min(len(events), seen + data.draw(st.integers(1, 6)))
            screen.show(replace(STATE, events=events[max(0, seen - 6) : seen]))
    printed = [line[9:] for line in drawn(console).splitlines() if "|" not in line]
    assert printed == events


def test_with_json_everything_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with Screen(to_stderr=True) as screen:
        screen.show_line("starting")
        screen.show(STATE)
    screen.finish(STATE)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "overall" in captured.err


# ---- the summary ---------------------------------------------------------------------------------


def test_the_summary_compares_adapted_with_frozen() -> None:
    shown = text(STATE)
    assert "adapted 94.0 % 93.0 % 93.0 %" in shown
    assert "frozen 69.0 % 50.0 % 50.0 %" in shown
    assert "8,000 samples, 7,990 predictions, 0 dropped, 7,900 labels in 42 s" in shown
    assert "9 training runs, 3 swaps, 1 rollback; engine native, broker mosquitto" in shown
    assert shown.endswith(
        "The frozen model fell from 96 % to 50 % right; the one that kept learning ended at 93 %, "
        "with 3 swaps while it was serving, and no prediction was dropped."
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"frozen": HELD, "adapted": HELD}, "the one that kept learning did as well (93 %)"),
        ({"frozen": HELD, "adapted": FELL}, "the one that kept learning did worse (50 %)"),
        ({"frozen": [0.7] * 40}, "The frozen model stood at 70 % right"),
        ({"dropped": 1}, "and 1 prediction dropped."),
        ({"dropped": 1200, "swaps": [3]}, "with 1 swap while it was serving, and 1,200 predictions dropped."),
        ({"frozen": [], "adapted": []}, "ended before anything could be compared."),
        ({"frozen": [float("nan")] * 3}, "ended before anything could be compared."),
    ],
)
def test_the_sentence_says_what_happened(change: dict[str, list[float]], said: str) -> None:
    assert said in text(replace(STATE, **change))  # type: ignore[arg-type]


def test_the_end_says_how_several_pumps_did() -> None:
    console = Console(file=io.StringIO(), width=200)
    console.print(summary(replace(STATE, machines=MACHINES)))
    (line,) = [line for line in drawn(console).splitlines() if "pumps" in line]
    assert line.rstrip() == (
        "100 pumps: 95.8 % in the mean, 86.3 % the worst pump;"
        " frozen 61.0 % in the mean, 40.2 % the worst pump"
    )
    console.print(summary(STATE))
    assert drawn(console).count("pumps") == 1
