"""Which commands may be executed: signatures checked with the keys, clock and memory of this device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.domain.commands.signatures import Authority, UsedTransactions

if TYPE_CHECKING:
    from edged.clock import Clock
    from edged.config import CommandsConfig
    from edged.storage.models.registry import Registry


def command_authority(
    device: str, config: CommandsConfig, registry: Registry, clock: Clock
) -> Authority | None:
    """Return what checks the signatures of commands; None without keys in the configuration.

    `device`: id of this device. `config`: the trusted keys, and the commands that must be signed. `registry`
    remembers which signed commands were accepted. `clock` judges the age of signatures. Raises ConfigError
    when a key cannot be used.
    """
    if not config.keys:
        return None
    from edged.signing import Keys

    return Authority(
        device,
        keys=Keys(config.keys),
        needed=config.must_be_signed,
        window=config.signed_window,
        clock=clock,
        spent=UsedTransactions(config.signed_window, registry),
    )
