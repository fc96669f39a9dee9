"""What an operator runs on a state directory, beside the daemon."""
