"""Work off the device: evaluation, recordings, demo, proposals."""
