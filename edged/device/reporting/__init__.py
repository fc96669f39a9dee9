"""Status, metrics, events and weights: published now, or stored and forwarded."""
