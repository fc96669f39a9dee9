"""A device as a member of its fleet."""

from edged.device.fleet_member.member import Member

__all__ = ["Member"]
