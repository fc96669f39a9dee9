"""Fetching a file from an address that was allowed. Imported when something is to be fetched."""

from __future__ import annotations

import ssl
import urllib.request

from edged.errors import RefusedError, UnavailableError


def fetch(url: str, size: int, timeout: float) -> bytes:
    """What is at an address, of exactly `size` bytes; certificates are verified, redirections not followed.

    The address begins with `https://` or, on this machine, `http://`; `timeout` is in seconds, of each wait.

    Raises UnavailableError when it cannot be fetched; RefusedError when it has another size.
    """
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    try:
        with opener.open(url, timeout=timeout) as answer:
            data: bytes = answer.read(size + 1)
    except (OSError, ValueError) as problem:
        raise UnavailableError(f"it cannot be fetched: {problem}", where=url) from None
    if len(data) != size:
        raise RefusedError(f"it has not {size} bytes", where=url)
    return data
