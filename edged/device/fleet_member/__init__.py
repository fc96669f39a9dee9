"""A device in its fleet, on the daemon's side."""

from edged.device.fleet_member.member import Member

__all__ = ["Member"]
