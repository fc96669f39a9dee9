"""Packages that only some codecs and transports need, imported when such a one is configured."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from edged.errors import UnavailableError


def required(package: str, extra: str, where: str) -> ModuleType:
    """Import a package that an extra installs.

    Raises UnavailableError when it is not installed; the error names the extra that brings it.
    """
    try:
        return import_module(package)
    except ImportError as problem:
        raise UnavailableError(
            f"the package {package.partition('.')[0]} is missing: {problem}",
            where=where,
            remedy=f'pip install "edged[{extra}]"',
        ) from problem
