"""Commands that an operator runs on a state directory, besides the daemon."""
