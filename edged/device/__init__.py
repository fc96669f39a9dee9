"""One running device: its parts wired together, what they tell each other, and its life.

Threads: network (paho), ingest, serve, learn, control, timetable, where configured web, and the main thread
that waits.
"""

from edged.device.assembly import BREATH
from edged.device.lifecycle import Device

__all__ = ["BREATH", "Device"]
