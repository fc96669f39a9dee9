"""`edged init`: what topics carry, which of them belong to one machine, and a configuration for them."""
