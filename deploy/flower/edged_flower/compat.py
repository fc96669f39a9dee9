"""Flower as it is installed here: in a known version, silent, with the identity that its messages want."""

from __future__ import annotations

import logging
import os
from importlib.metadata import version

from edged.errors import UnavailableError

VERSIONS = ("1.41.0", "1.42.0")
SILENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def require() -> None:
    """Make Flower usable in this process, without what it tells its makers.

    Its messages ask for the task of the process, which outside of Flower's own programs nobody sets: a
    private part of it, hence the versions that were tried.

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

    from flwr.supercore.task_identity import TaskIdentity

    try:
        _ = TaskIdentity.task_id
    except RuntimeError:  # no program of Flower's
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    logging.getLogger("flwr").setLevel(logging.WARNING)
