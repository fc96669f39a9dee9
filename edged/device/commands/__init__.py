"""What commands over MQTT do on this device, one file a subject."""

from edged.device.commands.announce import Transfers
from edged.device.commands.context import Parts
from edged.device.commands.install import InstallSteering
from edged.device.commands.labelling import Labelling
from edged.device.commands.table import Steering
from edged.device.commands.weights import WeightsSteering

__all__ = [
    "InstallSteering",
    "Labelling",
    "Parts",
    "Steering",
    "Transfers",
    "WeightsSteering",
]
