"""state.db: runs, commands, transfers and how the last process ended."""
