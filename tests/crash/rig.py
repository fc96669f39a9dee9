"""What the programs under test share: a bundle, a start of the daemon, and what others rely on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.clock import VirtualClock
from edged.device.startup.open_state import open_state
from edged.domain.bundle_contents import Tensor
from edged.storage.models.bundles import Bundle, seal
from tests.constants import configured
from tests.crash.operations import MARK
from tests.device.linear import GOOD, WIDTH, write

if TYPE_CHECKING:
    from edged.config import Config
    from edged.device.startup.open_state import OpenState

STREAM: dict[str, Any] = {"features": WIDTH, "classes": ["no", "yes"], "label": "y", "id": "id"}


def make_bundle(folder: Path) -> None:
    """A bundle that serves and cannot train: all that a start needs."""
    folder.mkdir()
    write(folder / "inference_model.onnx", GOOD)
    described = Bundle(
        folder, "0", "cross_entropy", "adamw", Tensor("x", ("n", WIDTH)), Tensor("y", ("n", 2)),
        Tensor("label", ("n",), "int64"), (), (),
    )  # fmt: skip
    seal(described, ["inference_model.onnx"])


def config_of(root: Path, bundle: Path, **sections: Any) -> Config:
    """A device whose state lies in `root`, below a directory that the daemon makes itself."""
    return configured(
        {
            "device": {"id": "rig"},
            "mqtt": {"host": "localhost"},
            "stream": {"topic": "s/#", **STREAM},
            "model": {"bundle": str(bundle)},
            "storage": {"dir": str(root / "lib" / "state")},
            **sections,
        }
    )


def opened(root: Path, bundle: Path, **sections: Any) -> OpenState:
    """A start of the daemon, as far as its files go."""
    state = open_state(config_of(root, bundle, **sections), VirtualClock(1000.0), check_seconds=60.0)
    state.recovery.serving()
    return state


def tell(*words: object) -> None:
    """Somebody else relies on it from now on."""
    os.write(1, MARK + " ".join(str(word) for word in words).encode() + b"\n")
