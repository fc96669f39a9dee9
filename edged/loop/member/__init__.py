"""A device in its fleet, on the daemon's side."""

from edged.loop.member.member import Member

__all__ = ["Member"]
