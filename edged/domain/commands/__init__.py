"""Rules of commands: limits, signatures, tasks, delivery."""
