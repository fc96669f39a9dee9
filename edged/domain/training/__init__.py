"""Rules of training: triggers, guards, replay, batches, averaging, the run queue."""
