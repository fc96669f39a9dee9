"""Which commands may be executed: signatures checked with the keys, clock and memory of this device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.domain.commands.signatures import Authority, UsedTransactions

if TYPE_CHECKING:
    from edged.clock import Clock
    from edged.config import CommandsConfig
    from edged.storage.models.registry import Registry


class CommandAuthority:
    """Checks the signatures of commands; without keys in the configuration every command passes.

    Parameters
    ----------
    device
        Id of this device.
    config
        The trusted keys, and the commands that must be signed.
    registry
        Remembers which signed commands were accepted.
    clock
        Judges the age of signatures.

    Raises
    ------
    ConfigError
        When a key cannot be used.
    """

    def __init__(self, device: str, config: CommandsConfig, registry: Registry, clock: Clock) -> None:
        self._authority: Authority | None = None
        if not config.keys:
            return
        from edged.signing import Keys

        self._authority = Authority(
            device,
            keys=Keys(config.keys),
            needed=config.must_be_signed,
            window=config.signed_window,
            clock=clock,
            spent=UsedTransactions(config.signed_window, registry),
        )

    def authorise(self, command: str, request: dict[str, Any], payload: bytes) -> None:
        """Return if the command may be executed; call it once, just before that.

        Raises
        ------
        RefusedError
            When the command must be signed and is not, or its signature is not accepted.
        """
        if self._authority is not None:
            self._authority.authorise(command, request, payload)
