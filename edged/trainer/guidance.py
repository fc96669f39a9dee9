"""Learning beside the champion: held to its weights, or to its answers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from edged.domain.model_files import model_in
from edged.domain.protocols import Anchor, Distillation
from edged.engines.inference import InferenceModel
from edged.storage.models.checkpoints import unpack_arrays

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edged.domain.protocols import Engine, StepResult
    from edged.engines.portable.engine import PortableEngine

    Floats = NDArray[np.float32]

Kind = Literal["l2sp", "ewc", "distill"]

ANCHOR_FILE = "anchor.npz"
VALUE, FISHER = "value/", "fisher/"
TEMPERATURE = 2.0


class ChampionGuide:
    """Keeps a run near the champion, so that the run does not forget what the champion knows.

    `l2sp` pulls the weights to the champion's (Li, Grandvalet, Davoine 2018), `ewc` the more the more a
    weight matters (Kirkpatrick et al. 2017): the diagonal of the Fisher information is taken from the
    optimizer's running mean of squared gradients and brought to a mean of 1, so that a weight of the guide
    means the same for both. `distill` adds the cross-entropy to the champion's softened answers (Hinton,
    Vinyals, Dean 2015; Li and Hoiem 2016). Only the portable engine can.

    `weight` says how much it counts beside the labels; `trainable` are the parameters that may be held.
    """

    def __init__(self, kind: Kind, weight: float, engine: PortableEngine, trainable: Iterable[str]) -> None:
        self._kind, self._weight, self._engine = kind, weight, engine
        self._trainable = tuple(trainable)
        self._answers: Floats | None = None

    def begin(self, champion: Path | None, x: Floats) -> None:
        """Guide the following steps by the model in the folder `champion`, and by its note.

        `x` `(n, d)` are the rows that steps are made of: a teacher answers them once. Without a champion,
        and for one that has left no note, nothing guides.
        """
        self._answers = None
        if self._kind == "distill" and champion is not None:
            self._answers = InferenceModel(model_in(champion)).predict(x)
            self._engine.guide(None, Distillation(self._weight, TEMPERATURE))
            return
        file = None if champion is None else champion / ANCHOR_FILE
        known = unpack_arrays(file.read_bytes()) if file is not None and file.exists() else {}
        values = {name.removeprefix(VALUE): a for name, a in known.items() if name.startswith(VALUE)}
        matters = {name.removeprefix(FISHER): a for name, a in known.items() if name.startswith(FISHER)}
        if values and (matters or self._kind == "l2sp"):
            self._engine.guide(Anchor(values, self._weight, matters if self._kind == "ewc" else None))
        else:
            self._engine.guide()

    @property
    def teaching(self) -> bool:
        """Whether steps need the champion's answers, and so are made one by one."""
        return self._answers is not None

    def step(self, x: Floats, y: NDArray[np.generic], index: NDArray[np.int64], *, apply: bool) -> StepResult:
        """Make a step on the rows `index` of those that `begin` was given."""
        taught = None if self._answers is None else self._answers[index]
        return self._engine.step(x[index], y[index], apply=apply, teacher=taught)

    def anchor(self) -> dict[str, Floats]:
        """Return what anchoring to this model will need: weights, and how much each matters."""
        if self._kind == "distill":
            return {}
        own = self._engine.parameters()
        known = {VALUE + name: own[name] for name in self._trainable}
        if self._kind == "ewc":
            known |= {FISHER + name: value for name, value in self._engine.importance().items()}
        return known


def guide_for(kind: str, weight: float, engine: Engine, trainable: Iterable[str]) -> ChampionGuide | None:
    """Create the guide that a configuration asks for; None for `none`.

    Raises UnavailableError when the engine has no place for it.
    """
    if kind == "none":
        return None
    engine.guide(Anchor({}, 0.0))  # an engine that cannot says so now, not in the middle of a run
    engine.guide()
    return ChampionGuide(cast("Kind", kind), weight, cast("PortableEngine", engine), trainable)
