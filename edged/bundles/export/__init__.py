"""Models for other programs, and single parameters."""
