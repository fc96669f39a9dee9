"""A state directory in one file, and back."""
