"""What commands over MQTT do on this device, one file a subject."""

from edged.steering.commands import Steering
from edged.steering.install import InstallSteering
from edged.steering.labelling import Labelling
from edged.steering.parts import Parts
from edged.steering.transfers import Transfers
from edged.steering.weights import WeightsSteering

__all__ = [
    "InstallSteering",
    "Labelling",
    "Parts",
    "Steering",
    "Transfers",
    "WeightsSteering",
]
