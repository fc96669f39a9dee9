"""The machine edged runs on: the service manager, its vital signs, the limits of child processes."""
