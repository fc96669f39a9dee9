"""The first opening of a bundle or model: order and result of the child process that carries it out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edged.domain.stream.schema import Schema
from edged.domain.training.message import Message

Kind = Literal["bundle", "model", "configured"]


@dataclass(frozen=True)
class FirstOpening(Message):
    """Verify what came from elsewhere, and open it with onnxruntime within limits.

    Attributes
    ----------
    kind
        A `bundle` that is installed from the chunks of its file, a `model` in chunks, or the `configured`
        bundle: a directory or one file.
    state
        The device's state directory.
    schema
        What the bundle has to fit.
    batch
        Rows of a training step.
    max_bytes
        Most bytes that an installed bundle may have.
    keys
        Public keys of which one must have signed a bundle; none where no signature is asked for.
    sources
        The chunks in their order; of the configured bundle its path.
    bundle
        The bundle that a `model` is for.
    keep
        Fingerprints of the installed bundles that stay.
    parent
        Process id of the daemon, with which this process ends.
    memory
        Bytes of data that the process may allocate.
    seconds
        Processor time that it may take.
    least_version
        Lowest version of a signed bundle that is taken.
    now
        Unix seconds by the device's clock.
    """

    kind: Kind
    state: Path
    schema: Schema
    batch: int
    max_bytes: int
    keys: tuple[Path, ...]
    sources: tuple[Path, ...]
    parent: int
    memory: int
    seconds: int
    bundle: Path | None = None
    keep: tuple[str, ...] = ()
    least_version: int = 0
    now: float = 0.0


@dataclass(frozen=True)
class Opened(Message):
    """What was opened: of a bundle the fingerprint, of a signed one the version and the id of the key."""

    fingerprint: str = ""
    version: int = 0
    signer: str = ""
