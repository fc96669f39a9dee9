"""What a learner keeps of earlier parts of its stream, from its skill on each part after each part.

`skill[i, j]`, `(T, T)` float64, is the quality on held-out samples of part `j` after learning part `i`;
larger is better.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def backward_transfer(skill: NDArray[np.float64]) -> float:
    """Mean change of the skill on each earlier part from the end of that part to the end of the stream.

    Negative values are forgetting. Lopez-Paz & Ranzato, "Gradient episodic memory for continual
    learning", NeurIPS 2017.

    >>> round(backward_transfer(np.array([[0.9, 0.5], [0.7, 0.8]])), 3)
    -0.2
    """
    return float(np.mean(skill[-1, :-1] - np.diag(skill)[:-1])) if len(skill) > 1 else 0.0


def forward_transfer(skill: NDArray[np.float64], untrained: NDArray[np.float64]) -> float:
    """Mean skill on each part before it was learned, above that of the first model, `untrained` `(T,)`.

    Lopez-Paz & Ranzato (2017), with the frozen model in place of a random one.

    >>> round(forward_transfer(np.array([[0.9, 0.6], [0.7, 0.8]]), np.array([0.9, 0.5])), 3)
    0.1
    """
    return float(np.mean(np.diag(skill, 1) - untrained[1:])) if len(skill) > 1 else 0.0


def forgetting(skill: NDArray[np.float64]) -> float:
    """Mean distance of the final skill on each earlier part from the best that was ever reached on it.

    Chaudhry et al., "Riemannian walk for incremental learning", ECCV 2018.

    >>> round(forgetting(np.array([[0.9, 0.5, 0.4], [0.95, 0.8, 0.4], [0.7, 0.8, 0.9]])), 3)
    0.125
    """
    if len(skill) < 2:
        return 0.0
    earlier = [skill[part:-1, part].max() - skill[-1, part] for part in range(len(skill) - 1)]
    return float(np.mean(earlier))
