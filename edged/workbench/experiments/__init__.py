"""`edged recipe run`: every recipe of a file trained on recorded data off the device, compared and ranked.

The stream is split in the order of time. Each recipe is trained from several seeds, each training in a
process of its own. Recipes are ranked by the validation part alone; the test part is shown and decides
nothing.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edged.domain.messages.encoding import json_ready
from edged.errors import ConfigError, EdgedError
from edged.storage.files.atomic import disk_errors
from edged.workbench.experiments.deploy import bundle_path, deploy, refuse_taken
from edged.workbench.experiments.job import BUNDLE, TrialOrder, save_data
from edged.workbench.experiments.loading import LoadedRecipes, load_recipes, load_stream
from edged.workbench.experiments.ranking import RankedRecipe, best_seed, ranking
from edged.workbench.experiments.report import RecipeReport, WrittenWinner, page
from edged.workbench.experiments.runner import Runner
from edged.workbench.experiments.scoring import LOWER_IS_BETTER

if TYPE_CHECKING:
    from edged.workbench.experiments.runner import TrialOutcome, TrialProgress


@dataclass(frozen=True)
class ExperimentOptions:
    """Where the report goes, how many trainings run at a time, and the configuration to write, if any.

    With `force` the configuration and its bundle may be there already, and are replaced.
    """

    out: Path
    jobs: int
    write: Path | None = None
    force: bool = False


def run(path: Path, data: Path, options: ExperimentOptions, progress: TrialProgress) -> RecipeReport:
    """Train all recipes of the file at `path`; the report, which is also written into `options.out`.

    Raises EdgedError, one clear line, on anything that stops it; a training that fails does not. It is also
    raised when every recipe failed; the report is written all the same then.
    """
    started = time.monotonic()
    loaded = load_recipes(path)
    _prepare(options)
    stream, split = load_stream(loaded.file, data)
    with tempfile.TemporaryDirectory(prefix="edged-recipe-", ignore_cleanup_errors=True) as temporary:
        work = Path(temporary)
        with disk_errors("writing the data for the trainings", work):
            save_data(work, stream, split)
        orders = _orders(loaded, work)
        outcomes = Runner(options.jobs, loaded.file.timeout, progress).run(orders)
        ranked, failed = ranking(loaded.recipes, outcomes, loaded.file.judged_by)
        written = None
        if options.write is not None and ranked:
            order = _winner(outcomes, ranked[0], loaded.file.judged_by)
            deploy(options.write, loaded, order, file=path.name, data=data.name)
            written = WrittenWinner(str(options.write), str(bundle_path(options.write)), order.seed)
    report = RecipeReport(
        name=loaded.file.name,
        data=data.name,
        task=loaded.file.stream.resolved_task,
        metric=loaded.file.judged_by,
        higher_is_better=loaded.file.judged_by not in LOWER_IS_BETTER,
        rows=split.counts(),
        gap=split.gap,
        warnings=tuple(stream.warnings),
        seeds=loaded.file.seeds,
        trials=len(orders),
        jobs=options.jobs,
        engine=loaded.file.engine,
        ranking=ranked,
        failed=failed,
        written=written,
        seconds=round(time.monotonic() - started, 3),
    )
    text = json.dumps(json_ready(report.to_json()), indent=1)
    with disk_errors("writing the report", options.out):
        (options.out / "report.json").write_text(text + "\n", "utf-8")
        (options.out / "report.html").write_text(page(report), "utf-8")
    if not ranked:
        reason = failed[0].reasons[0].reason
        raise EdgedError(f"all recipes failed, the first because {reason}", where=str(path))
    return report


def _prepare(options: ExperimentOptions) -> None:
    """Refuse what could not be written in the end, before hours of training."""
    if (options.out / "report.json").exists():
        raise ConfigError("holds a report already", where=str(options.out), remedy="name a new directory")
    if options.write is not None:
        refuse_taken(options.write, force=options.force)
    with disk_errors("making the directory of the report", options.out):
        options.out.mkdir(parents=True, exist_ok=True)


def _orders(loaded: LoadedRecipes, work: Path) -> list[TrialOrder]:
    schema, file = loaded.file.stream.to_schema().fixed(), loaded.file
    return [
        TrialOrder(
            recipe, schema, seed, file.engine, file.threads, file.judged_by, work, folder, folder / BUNDLE
        )
        for i, recipe in enumerate(loaded.recipes)
        for seed in range(file.seeds)
        for folder in [work / f"{i}-{seed}"]
    ]


def _winner(outcomes: Sequence[TrialOutcome], first: RankedRecipe, metric: str) -> TrialOrder:
    """The training with which the first recipe was best."""
    seed = best_seed(first, metric)
    orders = [outcome.order for outcome in outcomes if outcome.order.recipe is first.recipe]
    return next(order for order in orders if order.seed == seed)
