"""A device as a member of its fleet."""
