"""The models of keys beside the stream's: which key has one, which answers, who trains next.

A key shares the stream's model until it has labels enough. Then it gets a directory, and a pipeline that
starts from the stream's model. Both answer its samples from then on, and the one that errs less is published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.device.keys.key_serving import KeyServing
from edged.device.keys.key_training import LOOK_SECONDS, KeyTraining
from edged.device.keys.loaded_keys import LoadedKeys
from edged.device.reports import KeyModelLine, KeyModelsReport

if TYPE_CHECKING:
    from edged.device.pipeline import Host, Pipeline
    from edged.domain.protocols import Deferring
    from edged.storage.models.bundles import Bundle

WORST = 20  # keys that the status lists


class KeyModels:
    """The models of keys beside that of the stream, `common`: `pipelines`, `serving` and `training`.

    Parameters are those of `LoadedKeys`.
    """

    def __init__(self, common: Pipeline, bundle: Bundle, host: Host, later: Deferring | None = None) -> None:
        self.pipelines = LoadedKeys(common, bundle, host, later)
        self.training = KeyTraining(
            common, self.pipelines, host.events, 0.0 if later is None else LOOK_SECONDS
        )
        self.serving = KeyServing(common, self.pipelines, self.training, host.events)

    def status(self) -> KeyModelsReport:
        """How many keys have models of their own, how many are loaded, and those that do worst."""
        lines = [
            KeyModelLine(
                record.key,
                record.accuracy,
                record.version,
                record.runs,
                labels=self.training.labels(record.key),
                answers=bool(record.version and record.contest and record.contest.own),
                loaded=self.pipelines.get(record.key) is not None,
            )
            for record in self.pipelines.records().values()
        ]
        worst = sorted(lines, key=lambda line: (line.accuracy is None, line.accuracy or 0.0, line.key))
        return KeyModelsReport(
            len(lines),
            sum(line.answers for line in lines),
            sum(line.loaded for line in lines),
            self.pipelines.loads,
            self.pipelines.unloads,
            tuple(worst[:WORST]),
        )

    def forget(self, key: str | None = None) -> int:
        """Remove the models of a key, or of all; how many keys share the stream's again.

        Call it between two runs. StorageError when the disk refuses: then call it again.
        """
        gone = self.pipelines.erase(key)
        self.training.forget(None if key is None else gone)
        return len(gone)
