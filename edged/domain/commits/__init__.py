"""Messages on their way to the disk: which are committed together, when, and which came before."""
