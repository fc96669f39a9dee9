"""Work off the device: evaluation, experiments, recordings, demo, proposals."""
