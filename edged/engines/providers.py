"""Execution providers: what onnxruntime runs a graph on, by its own names for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.engines.runtime import onnxruntime
from edged.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

CPU = ("CPUExecutionProvider",)


def only_cpu(providers: Sequence[str]) -> bool:
    """Whether nothing but the CPU is asked for.

    >>> only_cpu(["CUDAExecutionProvider", "CPUExecutionProvider"])
    False
    """
    return all(name == CPU[0] for name in providers)


def check(providers: Sequence[str], where: str) -> None:
    """Refuse a provider that this onnxruntime was not built with; `where` is the key that names it.

    onnxruntime itself would warn and take the CPU: whoever has paid for an accelerator wants to know.

    Raises
    ------
    ConfigError
        Naming those that there are.
    """
    there = onnxruntime.get_available_providers()
    for name in providers:
        if name not in there:
            raise ConfigError(
                f"this onnxruntime has no {name}",
                where=where,
                remedy=f"it has {', '.join(there)}; others come with other builds of onnxruntime",
            )


def with_cpu(providers: Sequence[str]) -> list[str]:
    """The providers in their order, the CPU last: it has every operator."""
    return [*(name for name in providers if name != CPU[0]), *CPU]


def confirm(session: Any, providers: Sequence[str]) -> None:
    """Refuse a session that has silently gone without a provider, as when its driver is missing.

    Raises
    ------
    UnavailableError
        Naming the provider.
    """
    for name in providers:
        if name not in session.get_providers():
            raise UnavailableError(
                f"{name} is in this onnxruntime, but cannot be used on this machine",
                where="execution provider",
                remedy="install its driver and libraries, or take CPUExecutionProvider",
            )
