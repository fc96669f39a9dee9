"""What an engine says of a batch that it does not take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.domain.protocols import labels_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edged.domain.protocols import Labels


def described(x: NDArray[np.float32], y: Labels) -> str:
    """Types and shapes of the input and of each label."""
    labels = ", ".join(f"label {label.dtype}{list(label.shape)}" for label in labels_of(y))
    return f"input {x.dtype}{list(x.shape)}, {labels}"
