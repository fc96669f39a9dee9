"""What commands over MQTT do on this device, one file a subject."""

from edged.steering.commands import Steering
from edged.steering.labelling import Labelling

__all__ = ["Labelling", "Steering"]
