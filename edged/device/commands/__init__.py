"""What commands over MQTT do on this device, one file a subject."""

from edged.device.commands.context import Parts
from edged.device.commands.labelling import LabelCommands
from edged.device.commands.table import CommandTable
from edged.device.commands.transfers import TransferCommands

__all__ = ["CommandTable", "LabelCommands", "Parts", "TransferCommands"]
