"""The end of a run: what it has made is published as a candidate for the daemon."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from edged.engines import averaged
from edged.engines.challenger import NOTE
from edged.engines.model_parameters import WEIGHTS_FILE
from edged.storage.candidates import publish_candidate
from edged.storage.checkpoints import pack_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from edged.domain.averaging import Average
    from edged.domain.protocols import Engine, Model
    from edged.engines.challenger import Challenger
    from edged.engines.guides import ChampionGuide

    Parameters = Mapping[str, NDArray[np.float32]]

ANCHOR_FILE = "anchor.npz"


class HandingOver:
    """Publishes candidates in `candidates`; `pack_weights` writes weights that lie beside the model."""

    def __init__(
        self,
        candidates: Path,
        load_model: Callable[[Path], Model],
        pack_weights: Callable[[Parameters], bytes] | None,
    ) -> None:
        self._candidates, self._load_model, self._pack = candidates, load_model, pack_weights

    def candidate(
        self,
        run: int,
        engine: Engine,
        average: Average,
        probe: NDArray[np.float32],
        guide: ChampionGuide | None,
    ) -> Path:
        """Publish the averaged weights while they do better, else the newest; a guide notes what it needs."""
        with averaged.in_place(average, engine) if average.better else nullcontext():
            notes = self._weights(engine)
            if guide is not None:
                notes[ANCHOR_FILE] = pack_arrays(guide.note())
            return publish_candidate(self._candidates, run, engine.export, self._load_model, probe, notes)

    def challenger(
        self, run: int, beside: Challenger | None, probe: NDArray[np.float32]
    ) -> dict[str, Any] | None:
        """Publish a challenger that has won, with the errors by which it did."""
        if not beside or not beside.won:
            return None
        notes = {NOTE: beside.note(), **self._weights(beside.engine)}
        path = publish_candidate(
            self._candidates, run, beside.engine.export, self._load_model, probe, notes, "-challenger"
        )
        return {"candidate": str(path), "contest": beside.contest.dump()}

    def _weights(self, engine: Engine) -> dict[str, bytes]:
        return {} if self._pack is None else {WEIGHTS_FILE: self._pack(engine.parameters())}
