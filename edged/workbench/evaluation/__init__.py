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
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edged.domain.messages.encoding import json_ready
from edged.storage.recordings import read_recording
from edged.workbench.evaluation.compare import EvaluationOutcome, compare, comparison_page
from edged.workbench.evaluation.history import history
from edged.workbench.evaluation.replay import Replay
from edged.workbench.evaluation.report import page
from edged.workbench.evaluation.score import report, row_errors
from edged.workbench.recordings.stream import LabelOptions, shape_stream

if TYPE_CHECKING:
    from edged.config import Config
    from edged.storage.recordings import Frame
    from edged.workbench.evaluation.figures import EvaluationComparison, EvaluationReport

    Progress = Callable[[int, int, int], None]

WRITTEN = (
    "report.*", "*.db*", "bundle", "bundle.*", "unpacked", "checkpoints", "candidates", "models", "updates",
    "engine-choice.json", "edged.lock",
)  # fmt: skip
"""Patterns of the names in the directory that an evaluation leaves."""


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
    return _evaluate(config.device.id, config, data, options, out, on_progress).report


def run_several(
    configs: Sequence[tuple[str, Config]],
    data: Path | Frame,
    options: LabelOptions,
    out: Path | None = None,
    on_progress: Progress = lambda *_: None,
) -> EvaluationComparison:
    """Evaluate named configurations one after another and compare each with the first.

    `out` keeps a directory for each, `compare.json` and `compare.html`.
    """
    outcomes = [
        _evaluate(name, config, data, options, None if out is None else out / name, on_progress)
        for name, config in configs
    ]
    comparison = compare(outcomes)
    if out is not None:
        _write(out / "compare.json", json.dumps(json_ready(comparison.to_json()), indent=1) + "\n")
        _write(out / "compare.html", comparison_page(f"{data.name}: compared", comparison, outcomes))
    return comparison


def _evaluate(
    name: str,
    config: Config,
    data: Path | Frame,
    options: LabelOptions,
    out: Path | None,
    on_progress: Progress,
) -> EvaluationOutcome:
    started = time.monotonic()
    stream = shape_stream(read_recording(data, config.stream), config, options)
    with tempfile.TemporaryDirectory(prefix="edged-evaluate-") as temporary:
        replay = Replay(config, stream, options, out or Path(temporary), on_progress)
        replay.run()
        figures = report(replay)
    usage = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = round(time.monotonic() - started, 3)
    figures, recorded = replace(figures, seconds=seconds, peak_rss_mb=round(usage / 1024, 1)), history(replay)
    if out is not None:
        kept = {**figures.to_json(), "history": recorded.to_json()}
        _write(out / "report.json", json.dumps(json_ready(kept), indent=1) + "\n")
        _write(out / "report.html", page(f"{data.name}: {name}", figures, recorded))
    return EvaluationOutcome(name, figures, recorded, *row_errors(replay))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
