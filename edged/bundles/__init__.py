"""The offline phase: from a model to a bundle. Nothing here is imported by the daemon."""

from __future__ import annotations

from edged.errors import UnavailableError


def require() -> None:
    """Check for the package onnx, before anything here is used.

    Raises UnavailableError when it is missing: installed without dependencies, or from an old list of them.
    """
    try:
        import onnx  # noqa: F401
    except ModuleNotFoundError:
        raise UnavailableError(
            "the package onnx is not installed",
            where="offline phase",
            remedy="pip install onnx",
        ) from None
