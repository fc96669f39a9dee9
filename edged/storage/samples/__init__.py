"""samples.db: the sample log, its labels, windows and quarantine."""
