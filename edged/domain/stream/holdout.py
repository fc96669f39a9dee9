"""Which samples are kept for judging and never trained on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edged.domain.seeded_rng import STEP, splitmix


def is_holdout(offsets: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Whether each sample belongs to the holdout, `(n,)` bool, from its offset alone, `(n,)` int64.

    The offset is hashed (see `splitmix`), so neither a period in the stream nor a restart favours one
    side, and the answer for an offset and a share stays the same for ever. A larger share keeps every sample
    of a smaller one.

    >>> is_holdout(np.arange(12), 0.25).astype(int).tolist()
    [0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 0]
    """
    places = np.asarray(offsets, np.int64).reshape(-1).astype(np.uint64) + np.uint64(1)
    return np.asarray(splitmix(places * STEP) < share)
