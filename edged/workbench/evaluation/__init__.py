"""`edged evaluate`: a recorded stream through the whole loop, on a virtual clock.

The buffer, the triggers, the trainer process, the gate, the registry and the serving code are the
daemon's own; only the broker and the threads are left out, so that the same seed gives the same
result. Prequential: every sample is predicted by the champion of that moment before its label can
be seen. Training takes no virtual time: a candidate is ready at the sample that triggered it.
"""

from __future__ import annotations

import json
import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from edged.config import Config
from edged.domain.json_fields import json_ready
from edged.storage.recordings.frame import Frame
from edged.storage.recordings.samples import read_recording
from edged.workbench.evaluation.comparison import (
    EvaluationOutcome,
    check_same_stream,
    comparison_page,
    ranked,
)
from edged.workbench.evaluation.figures import EvaluationComparison, EvaluationReport
from edged.workbench.evaluation.page import page
from edged.workbench.evaluation.replay import Replay
from edged.workbench.evaluation.score import history, report, row_values
from edged.workbench.evaluation.stream import LabelOptions, Stream, shape_stream

Progress = Callable[[str, int, int, int], None]
"""Gets the name of the configuration, the position, the number of samples and the version that serves."""

WRITTEN = (
    "report.*", "*.db*", "bundle", "bundle.*", "unpacked", "checkpoints", "candidates", "models",
    "edged.lock",
)  # fmt: skip
"""Patterns of the names in the directory that an evaluation leaves."""

COMPARED = ("report.html", "results.json")
"""Names in the directory that a comparison leaves."""


def run(
    config: Config,
    data: Path | Frame,
    options: LabelOptions,
    out: Path | None = None,
    on_progress: Progress = lambda *_: None,
) -> EvaluationReport:
    """Evaluate and return the report.

    `out` keeps the state directory, `report.json` and `report.html`; without it they are temporary.
    """
    name = config.device.id
    stream = _shaped(config, data, options)
    outcome = _evaluate(name, config, stream, options, out, partial(on_progress, name))
    if out is not None:
        _write_json(out / "report.json", outcome.to_json())
        _write(out / "report.html", page(f"{data.name}: {name}", outcome.report, outcome.history))
    return outcome.report


def compare(
    configs: Sequence[tuple[str, Config]],
    data: Path | Frame,
    options: LabelOptions,
    out: Path | None = None,
    on_progress: Progress = lambda *_: None,
) -> EvaluationComparison:
    """Evaluate named configurations one after another and rank them by the main metric of their task.

    `out` keeps `results.json` and `report.html`. Raises ConfigError before the first replay when the streams
    of the configurations differ in features, classes or task, or read other samples from the data.
    """
    check_same_stream([(name, config, partial(_shaped, config, data, options)) for name, config in configs])
    outcomes = [
        _evaluate(name, config, _shaped(config, data, options), options, None, partial(on_progress, name))
        for name, config in configs
    ]
    comparison = ranked(outcomes)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        kept = {outcome.name: outcome.to_json() for outcome in outcomes}
        _write_json(out / "results.json", {**comparison.to_json(), "reports": kept})
        _write(out / "report.html", comparison_page(f"{data.name}: compared", comparison, outcomes))
    return comparison


def _shaped(config: Config, data: Path | Frame, options: LabelOptions) -> Stream:
    return shape_stream(read_recording(data, config.stream), config, options)


def _evaluate(
    name: str,
    config: Config,
    stream: Stream,
    options: LabelOptions,
    out: Path | None,
    on_progress: Callable[[int, int, int], None],
) -> EvaluationOutcome:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="edged-evaluate-") as temporary:
        replay = Replay(config, stream, options, out or Path(temporary), on_progress)
        replay.run()
        figures = report(replay)
    usage = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = round(time.monotonic() - started, 3)
    figures = replace(figures, seconds=seconds, peak_rss_mb=round(usage / 1024, 1))
    return EvaluationOutcome(name, figures, history(replay), row_values(replay))


def _write_json(path: Path, values: Mapping[str, object]) -> None:
    _write(path, json.dumps(json_ready(values), indent=1) + "\n")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
