"""The end of a run: what it has made is published as a candidate for the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.domain.training.training_run import Challenge
from edged.engines.model_parameters import WEIGHTS_FILE
from edged.storage.models.candidates import publish_candidate
from edged.storage.models.checkpoints import pack_arrays
from edged.trainer import averaging
from edged.trainer.challenger import NOTE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from edged.domain.protocols import Engine, Model
    from edged.domain.training.weight_averaging import Average
    from edged.storage.models.bundles import Bundle
    from edged.trainer.challenger import Challenger
    from edged.trainer.guidance import ChampionGuide

    Parameters = Mapping[str, NDArray[np.float32]]

ANCHOR_FILE = "anchor.npz"


class CandidateExporter:
    """Publishes candidates in `candidates`; what `pack_weights` and `quantised` make lies beside."""

    def __init__(
        self,
        candidates: Path,
        load_model: Callable[[Path], Model],
        pack_weights: Callable[[Parameters], bytes] | None,
        quantised: Callable[[Parameters], dict[str, bytes]],
        bundle: Bundle,
    ) -> None:
        self._candidates, self._load_model, self._pack = candidates, load_model, pack_weights
        self._quantised, self._suffix = quantised, bundle.inference_model.suffix

    def candidate(
        self,
        run: int,
        engine: Engine,
        average: Average,
        probe: NDArray[np.float32],
        guide: ChampionGuide | None,
    ) -> Path:
        """Publish the average that does better, without one the weights; a guide notes what it needs."""
        with averaging.in_place(average.chosen, engine):
            notes = self._beside_model(engine)
            if guide is not None:
                notes[ANCHOR_FILE] = pack_arrays(guide.note())
            return self._publish(run, engine, probe, notes)

    def challenger(self, run: int, beside: Challenger | None, probe: NDArray[np.float32]) -> Challenge | None:
        """Publish a challenger that has won, with the errors by which it did."""
        if not beside or not beside.won:
            return None
        notes = {NOTE: beside.note(), **self._beside_model(beside.engine)}
        path = self._publish(run, beside.engine, probe, notes, "-challenger")
        return Challenge(path, beside.contest.dump())

    def _beside_model(self, engine: Engine) -> dict[str, bytes]:
        """What lies beside an exported model: its quantised form and its weights, where they are wanted."""
        parameters = engine.parameters()
        notes = self._quantised(parameters)
        if self._pack is not None:
            notes[WEIGHTS_FILE] = self._pack(parameters)
        return notes

    def _publish(
        self, run: int, engine: Engine, probe: NDArray[np.float32], notes: dict[str, bytes], name: str = ""
    ) -> Path:
        return publish_candidate(
            self._candidates, run, engine.export, self._load_model, probe, notes, name, self._suffix
        )
