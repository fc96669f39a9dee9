"""Which transfers the configuration and the keys let in: when they are announced, and when installed."""

from __future__ import annotations

from dataclasses import replace

from edged.config import Config
from edged.errors import RefusedError
from edged.signing import key_id
from edged.storage.journal.transfers import TransferPurpose
from edged.storage.models.trust import Trust


class Admission:
    """Admits transfers by `config` (sections `weights`, `install` and `model.keys`) and the keys in `trust`.

    A transfer can wait on the disk for a long time, and the next start can find another configuration.
    """

    def __init__(self, config: Config, trust: Trust) -> None:
        self._config, self._trust = config, trust

    def announced(self, purpose: TransferPurpose) -> TransferPurpose:
        """Return the purpose with the ids of the keys that count now.

        Raises RefusedError when no such transfer is taken.
        """
        self._check(purpose)
        return replace(purpose, keys=self._keys())

    def check(self, purpose: TransferPurpose) -> None:
        """Raise the errors of `announced`, and RefusedError for weights if a key has lost its effect since.

        Bundles have a signature of their own.
        """
        self._check(purpose)
        if purpose.kind != "weights" or not self._config.model.keys:
            return
        if not purpose.keys or not set(purpose.keys) <= set(self._keys()):
            raise RefusedError(
                "the weights were announced when other keys counted",
                where="model.keys",
                remedy="announce them again, signed, as another transfer",
            )

    def _keys(self) -> tuple[str, ...]:
        return tuple(key_id(key) for key in self._trust.current(self._config.model.keys))

    def _check(self, purpose: TransferPurpose) -> None:
        kind, install = purpose.kind, self._config.install
        if kind == "weights":
            if not self._config.weights.accept:
                raise RefusedError("this device does not accept weights", where="weights.accept")
            return
        if kind == "model" and self._config.model.keys:
            raise RefusedError(
                "this device takes signed bundles only, and a model file has no signature",
                where="model.keys",
                remedy="send a signed bundle with bundle.install",
            )
        if install is None:
            raise RefusedError(
                f"this device takes no {kind}s",
                where="install",
                remedy="add the section to its configuration",
            )
