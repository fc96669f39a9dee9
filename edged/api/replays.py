"""Recorded data through the whole loop, in this process and on a virtual clock."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.api.inputs import config_of, data_of, empty_directory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edged.api.inputs import Configuration, PathOrText
    from edged.workbench.evaluation.figures import EvaluationComparison, EvaluationReport


@dataclass(frozen=True)
class FeedResult:
    """The prediction for each sample, one row each, in the order of the data.

    Rows that cannot become samples are left out; a stream of windows has one row per window.

    Attributes
    ----------
    keys
        Key of each sample.
    ts
        Time of each sample, `(n,)` float64, Unix seconds; positions where the data has no times.
    answers
        Predictions, `(n, w)` float32: class index; predicted values; or for `task: reconstruct` the anomaly
        score.
    labels
        True values, `(n, targets)` float32; NaN where the data has none.
    confidence
        Confidence of each answer, `(n,)` float64 from 0 to 1; NaN where the task has none.
    versions
        Version of the model that answered, `(n,)` int64.
    pretrained
        Number of rows at the start from which the first model was trained; they have no answers: version 0.
    classes
        Class names by index; empty for other tasks.
    report
        Figures of the whole replay, as `evaluate` returns them.
    """

    keys: tuple[str, ...]
    ts: NDArray[np.float64]
    answers: NDArray[np.float32]
    labels: NDArray[np.float32]
    confidence: NDArray[np.float64]
    versions: NDArray[np.int64]
    pretrained: int
    classes: tuple[str, ...]
    report: EvaluationReport

    def __len__(self) -> int:
        return len(self.keys)

    def columns(self) -> dict[str, Any]:
        """Return the rows that were answered as columns, as `pandas.DataFrame` and `pyarrow.table` take them.

        Answers and labels of a classification are class names, with None for no label. Several targets have a
        column each: `answer0`, `answer1` and so on.
        """
        rows = slice(self.pretrained, None)
        columns = {"key": list(self.keys[rows]), "ts": self.ts[rows]}
        for name, values in (("answer", self.answers[rows]), ("label", self.labels[rows])):
            if self.classes:
                columns[name] = [self.classes[int(v)] if v == v else None for v in values[:, 0].tolist()]  # noqa: PLR0124
            elif values.shape[1] == 1:
                columns[name] = values[:, 0]
            else:
                columns |= {f"{name}{i}": values[:, i] for i in range(values.shape[1])}
        return columns | {"confidence": self.confidence[rows], "version": self.versions[rows]}


def evaluate(
    config: Configuration,
    data: Any,
    *,
    labels_delay: int = 100,
    label_rate: float = 1.0,
    label_requests: bool = False,
    pretrain: int | None = None,
    seed: int = 0,
    stream: str | None = None,
    out: PathOrText | None = None,
) -> EvaluationReport:
    """Replay recorded data through the whole loop and return its figures, as `edged evaluate`.

    Each sample is predicted before its label is known. Training runs in a child process.

    Parameters
    ----------
    config, data
        See the top of the page.
    labels_delay
        Samples until a label is known.
    label_rate
        Share of the labels that arrive, from 0 to 1.
    label_requests
        Whether edged requests that share, instead of a random one.
    pretrain
        Rows from which the first model is trained; None: 10 %. 0: start with the model of `model.bundle`.
    seed
        Seed of everything random.
    stream
        Name of the stream, where the configuration has several.
    out
        New directory for the state, `report.json` and `report.html`; None: nothing is kept.

    Returns
    -------
    EvaluationReport
        Frozen dataclass: `metric` are the scores of the adapted model, such as `accuracy` or `mae`; `frozen`
        those of the first model, and `no_change` those of the last known label as the answer.

    Raises
    ------
    EdgedError
        ConfigError when configuration and data do not fit; TrainingError when pre-training failed.
    """
    from edged.workbench import evaluation

    options = _options(labels_delay, label_rate, seed, pretrain, label_requests)
    return evaluation.run(config_of(config, stream), data_of(data), options, _kept(out))


def compare(
    configs: Mapping[str, Configuration],
    data: Any,
    *,
    labels_delay: int = 100,
    label_rate: float = 1.0,
    label_requests: bool = False,
    pretrain: int | None = None,
    seed: int = 0,
    stream: str | None = None,
    out: PathOrText | None = None,
) -> EvaluationComparison:
    """Evaluate named configurations on the same data and rank them, as `edged evaluate A.yaml B.yaml`.

    Parameters are those of `evaluate`; `out` keeps `results.json` and `report.html`.

    Returns
    -------
    EvaluationComparison
        Frozen dataclass: `ranking` from the best configuration to the worst, each with its `difference` to
        the best and the 95 % interval, `low` to `high`; `reports` by name.

    Raises
    ------
    EdgedError
        As `evaluate`; ConfigError when features, classes or task of the streams differ.
    """
    from edged.workbench import evaluation

    options = _options(labels_delay, label_rate, seed, pretrain, label_requests)
    loaded = [(name, config_of(config, stream)) for name, config in configs.items()]
    return evaluation.compare(loaded, data_of(data), options, _kept(out))


def feed(
    config: Configuration,
    data: Any,
    *,
    labels_delay: int = 0,
    label_rate: float = 1.0,
    pretrain: int | None = None,
    seed: int = 0,
    stream: str | None = None,
    out: PathOrText | None = None,
) -> FeedResult:
    """Predict and learn from data without a broker, and return the answer to each sample.

    Serving, training, gate and rollback are those of the daemon. Parameters and errors are those of
    `evaluate`; `out` keeps the state directory alone, which `open_state` reads.
    """
    import numpy as np

    from edged.storage.recordings.samples import read_recording
    from edged.workbench.evaluation.replay import Replay
    from edged.workbench.evaluation.score import report
    from edged.workbench.evaluation.stream import shape_stream

    loaded, folder = config_of(config, stream), _kept(out)
    options = _options(labels_delay, label_rate, seed, pretrain, label_requests=False)
    shaped = shape_stream(read_recording(data_of(data), loaded.stream), loaded, options)
    with tempfile.TemporaryDirectory(prefix="edged-feed-") as temporary:
        replay = Replay(loaded, shaped, options, folder or Path(temporary))
        replay.run()
        figures = report(replay)
    return FeedResult(
        tuple(shaped.keys),
        shaped.t,
        replay.answers,
        np.where(shaped.known[:, None], shaped.y, np.float32("nan")),
        replay.promises.confidence,
        replay.versions,
        replay.pretrain,
        tuple(replay.schema.known_classes) if replay.schema.task == "classify" else (),
        figures,
    )


def _kept(out: PathOrText | None) -> Path | None:
    return None if out is None else empty_directory(out)


def _options(delay: int, rate: float, seed: int, pretrain: int | None, label_requests: bool) -> Any:
    from edged.workbench.evaluation.stream import LabelOptions

    return LabelOptions(delay, rate, seed, pretrain, label_requests)
