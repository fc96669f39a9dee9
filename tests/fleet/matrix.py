"""Room for a reducer's matrix without a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class InMemoryMatrix:
    """Allocates matrices in main memory."""

    def matrix(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        return np.empty(shape, dtype)

    def release(self) -> None:
        """Main memory cannot be reclaimed."""
