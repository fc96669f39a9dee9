"""When to train, the trainer process, and what the end of a run means."""
