"""Who may control this device: the rules of signatures with its keys, clock and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.domain.commands.signatures import Authority, UsedTransactions

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.clock import Clock
    from edged.config import Config
    from edged.storage.models.registry import Registry


def authorisation(
    config: Config, registry: Registry, clock: Clock
) -> Callable[[str, dict[str, Any], bytes], None]:
    """`check(command, request, payload)`, which raises RefusedError; without keys everything passes.

    Raises
    ------
    ConfigError
        When a key cannot be used.
    """
    commands = config.commands
    if not commands.keys:
        return _anybody
    from edged.signing import Keys

    keys = Keys(commands.keys)
    authority = Authority(
        config.device.id,
        keys=keys,
        needed=commands.must_be_signed,
        window=commands.signed_window,
        clock=clock,
        spent=UsedTransactions(commands.signed_window, registry),
    )
    return authority.authorise


def _anybody(command: str, request: dict[str, Any], payload: bytes) -> None: ...
