"""Announcing what comes in by chunks: the same for weights, models and bundles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.storage.journal.transfers import announced

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.device.transfers.installer import TransferInstaller
    from edged.device.transfers.receiver import TransferReceiver

MISSING_TOLD = 1000


class TransferCommands:
    """Opens transfers, and tells how they stand.

    Parameters
    ----------
    incoming, applying
        Take what comes in.
    topic
        Where the chunks of a transfer are sent to, by its name.
    """

    def __init__(
        self, incoming: TransferReceiver, applying: TransferInstaller, topic: Callable[[str], str]
    ) -> None:
        self._incoming = incoming
        self._applying = applying
        self._topic = topic

    def announce(
        self, name: Any, manifest: Any, note: dict[str, Any], max_bytes: int, *, fetched: bool = False
    ) -> dict[str, Any]:
        """Open a transfer or ask how it stands: which chunks are missing, or what became of it.

        Parameters
        ----------
        name, manifest
            As the sender gives them.
        note
            What is to be done with it.
        max_bytes
            Cap of its size.
        fetched
            Whether the device gets it itself, so that no chunks are waited for.

        Raises
        ------
        ConfigError
            When name or manifest is not usable.
        RefusedError
            When it is too large, or another is under way.
        """
        transfer = announced(name, manifest, note, max_bytes)
        outcome = self._applying.outcome(transfer.name, transfer.sha256)
        if outcome is not None:
            return outcome
        missing = self._incoming.begin(transfer)
        told = {"state": "receiving" if missing and not fetched else "executing", "transfer": transfer.name}
        if fetched:
            return told
        return told | {"topic": self._topic(transfer.name), "missing": missing[:MISSING_TOLD]}
