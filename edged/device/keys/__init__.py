"""Models of single keys: `model: {per: key}`."""

from edged.device.keys.key_models import KeyModels

__all__ = ["KeyModels"]
