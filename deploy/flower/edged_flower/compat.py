"""Flower as it is installed here: in a known version, and silent."""

from __future__ import annotations

import logging
import os
from importlib.metadata import version

from edged.errors import UnavailableError

VERSIONS = ("1.41.0", "1.42.0")
SILENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def require() -> None:
    """Make Flower usable in this process, without what it tells its makers.

    Raises
    ------
    UnavailableError
        When it is installed in a version that is not known.
    """
    found = version("flwr")
    if found not in VERSIONS:
        raise UnavailableError(
            f"flwr {' or '.join(VERSIONS)} is needed, here is {found}",
            where="edged-flower",
            remedy=f"pip install flwr=={VERSIONS[-1]}",
        )
    for name, value in SILENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("flwr").setLevel(logging.WARNING)
