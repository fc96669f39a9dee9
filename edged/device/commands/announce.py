"""Announcement of a transfer in chunks: the same for weights, models and bundles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.storage.journal.transfers import announced

if TYPE_CHECKING:
    from edged.device.transfers.installer import TransferInstaller
    from edged.device.transfers.receiver import TransferReceiver
    from edged.mqtt.topics import Topics

MAX_MISSING = 1000  # numbers of missing chunks in one answer


class TransferCommands:
    """Opens transfers, and reports their state.

    Parameters
    ----------
    receiver
        Collects the chunks of a transfer.
    installer
        Knows the outcomes of earlier transfers.
    topics
        Where the chunks of a transfer are sent to.
    """

    def __init__(self, receiver: TransferReceiver, installer: TransferInstaller, topics: Topics) -> None:
        self._receiver = receiver
        self._installer = installer
        self._topics = topics

    def announce(
        self, name: Any, manifest: Any, note: dict[str, Any], max_bytes: int, *, fetched: bool = False
    ) -> dict[str, Any]:
        """Open a transfer or report its state: which chunks are missing, or its outcome.

        Parameters
        ----------
        name, manifest
            Fields of the request.
        note
            Stored with the transfer, for the installer.
        max_bytes
            Maximum size of the transfer.
        fetched
            Whether the device downloads the content itself, so that no chunks arrive.

        Raises
        ------
        ConfigError
            When name or manifest is not valid.
        RefusedError
            When it is too large, or another transfer is open.
        """
        transfer = announced(name, manifest, note, max_bytes)
        outcome = self._installer.outcome(transfer.name, transfer.sha256)
        if outcome is not None:
            return outcome
        missing = self._receiver.begin(transfer)
        answer = {"state": "receiving" if missing and not fetched else "executing", "transfer": transfer.name}
        if fetched:
            return answer
        return answer | {"topic": self._topics.incoming(transfer.name), "missing": missing[:MAX_MISSING]}
