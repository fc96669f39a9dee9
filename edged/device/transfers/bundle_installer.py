"""A bundle that came over the network: unpacked, checked, and its model made a candidate.

The bundle that trains is the one that the champion belongs to. So an installed bundle is used from the moment
on in which its model takes over, and no longer when that is rolled back, whatever happens in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.device.learning.trainer_client import TrainerClient
from edged.domain.training.trainer_messages import AdoptInitial
from edged.storage.journal.transfers import chunk_file
from edged.storage.models.bundle_archive import InstalledBundles
from edged.storage.models.signatures import open_bundle

if TYPE_CHECKING:
    from pathlib import Path

    from edged.config import Config
    from edged.domain.training.training_run import Candidate
    from edged.storage.journal.transfers import Transfer
    from edged.storage.models.bundles import Bundle
    from edged.storage.models.registry import Registry


class BundleInstaller:
    """Makes a candidate of a bundle file.

    Parameters
    ----------
    config
        Of the device; `model.bundle` is the bundle that was configured.
    registry
        Tells which bundles its models belong to.
    """

    def __init__(self, config: Config, registry: Registry) -> None:
        self._config = config
        self._registry = registry
        self._installed = InstalledBundles(config.storage.dir)

    def present(self) -> Path | None:
        """The bundle that the champion belongs to: an installed one, or the configured one."""
        version = self._registry.champion()
        data = {} if version is None else self._registry.get(version).data
        return self._installed.find(data.get("bundle")) or self._config.model.bundle

    def candidate(self, run: int, transfer: Transfer, folder: Path) -> Candidate:
        """Install what a transfer has brought, and have its model exported by a trainer of its own.

        Raises
        ------
        EdgedError
            When it is no whole bundle for this stream, or cannot be trained from here.
        """
        chunks = [folder / chunk_file(n) for n in range(len(transfer.pieces))]
        known = {str(record.data.get("bundle")) for record in self._registry.records()}
        bundle = self._installed.install(chunks, self._config.install.max_bytes, self._check, known)
        model = self._config.model.model_copy(update={"bundle": bundle.path})
        process = TrainerClient(self._config.model_copy(update={"model": model}))
        try:
            return process.run(AdoptInitial(run, transfer.name, transfer.sha256))
        finally:
            process.close()

    def _check(self, bundle: Bundle) -> None:
        open_bundle(bundle.path, self._config.model.keys)
        bundle.check_schema(self._config.stream.to_schema())
