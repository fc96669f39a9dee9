"""What commands over MQTT do on this device, one file a subject."""

from edged.device.commands.announce import TransferCommands
from edged.device.commands.context import Parts
from edged.device.commands.install import InstallCommands
from edged.device.commands.labelling import LabelCommands
from edged.device.commands.table import CommandTable
from edged.device.commands.weights import WeightsCommands

__all__ = [
    "CommandTable",
    "InstallCommands",
    "LabelCommands",
    "Parts",
    "TransferCommands",
    "WeightsCommands",
]
