"""The offline phase: from a model to a bundle. Nothing here is imported by the daemon."""

from __future__ import annotations

from edged.errors import UnavailableError


def require() -> None:
    """Say what to install where the package onnx is missing, as on a device; before anything here is used.

    Raises
    ------
    UnavailableError
        When it is.
    """
    try:
        import onnx  # noqa: F401
    except ModuleNotFoundError:
        raise UnavailableError(
            "the package onnx is not installed",
            where="offline phase",
            remedy='pip install "edged[offline]"; a device needs only bundles that were built elsewhere',
        ) from None
