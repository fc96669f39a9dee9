"""Whether a model can be trained, by which engine, and what stands in the way: nothing is left on the disk.

First the preflight, node by node; then, for what it lets through, a bundle is built in a temporary
directory, so that what is said to be trainable was made into training graphs.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.bundles.commands import build_from_file
from edged.bundles.losses.objective import outputs_of
from edged.bundles.losses.options import parse
from edged.bundles.preflight import BOTH, Obstacle, engines_left, examine, lacking
from edged.bundles.source.normalise import conform, read_model
from edged.bundles.source.trainable import select
from edged.engines.native import api
from edged.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edged.bundles.graph.optimizers import Optimizer

_TOLD = ("input", "output", "label", "parameters", "trainable_size", "frozen_size", "files", "bytes")


def check(
    model: Path,
    *,
    loss: Sequence[str],
    optimizer: Optimizer,
    train: Sequence[str] = (),
    freeze: Sequence[str] = (),
    engine: str = "both",
    standardise: bool = True,
    library: Path | None = None,
) -> dict[str, Any]:
    """What `build_from_file` would make of a model file, or why it would not; `loss` is as for it.

    Returns
    -------
    `ok`, `engines` that can train it, `findings` (`node`, `operator`, `engines` that cannot because of it,
    `what`, `remedy`) and `notes`; where it was built also `input`, `output`, `label`, the table of
    `parameters`, and the `files` of the bundle with their sizes.

    Raises
    ------
    ConfigError
        When loss, optimizer or engine is unknown, or a glob matches nothing.
    """
    notes: list[str] = []
    found = _preflight(model, outputs_of(parse(loss)), train, freeze, optimizer, library, notes)
    engines, told = engines_left(found, engine), dict[str, Any]()
    if engines and api.available():
        with tempfile.TemporaryDirectory() as folder:
            try:
                told = build_from_file(
                    model, Path(folder) / "bundle", loss=loss, optimizer=optimizer, train=train,
                    freeze=freeze, data=None, standardise=standardise, engine=engine, library=library,
                )  # fmt: skip
            except BundleError as problem:
                found.append(_of(problem, engines))
                engines = ()
        if told:
            why = told["refused"].values()
            notes = [note for note in told["notes"] if not any(reason in note for reason in why)]
            found += [_of(told["refused"][name], (name,)) for name in engines if name in told["refused"]]
            engines = tuple(told["engines"])
    elif engines:
        notes.append("not tried: the training build of onnxruntime, which makes the graphs, is not installed")
    return {
        "model": str(model),
        "ok": bool(engines),
        "engines": engines,
        "findings": [finding.as_dict() for finding in found],
        "notes": notes,
        **{name: told[name] for name in _TOLD if name in told},
    }


def _preflight(
    model: Path,
    outputs: Sequence[str] | None,
    train: Sequence[str],
    freeze: Sequence[str],
    optimizer: Optimizer,
    library: Path | None,
    notes: list[str],
) -> list[Obstacle]:
    given = read_model(model)
    functions = None if library is None else read_model(library)
    try:
        conformed = conform(given, outputs, library=functions, note=notes.append)
        trainable, _ = select(conformed.graph, train, freeze)
        return [*examine(conformed, trainable), *lacking(optimizer)]
    except BundleError as problem:
        return [_of(problem, BOTH)]


def _of(problem: BundleError | str, engines: tuple[str, ...]) -> Obstacle:
    """What stopped a build, as a finding of these engines."""
    if isinstance(problem, str):
        return Obstacle(
            "", "", engines, problem, "build with --engine " + next(e for e in BOTH if e not in engines)
        )
    node = problem.where.removeprefix("node ") if problem.where.startswith("node ") else ""
    what = problem.what if node or not problem.where else f"{problem.where}: {problem.what}"
    return Obstacle(node, "", engines, what, problem.remedy)
