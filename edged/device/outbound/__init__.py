"""What leaves the device: events, states, metrics, predictions and weights, now or stored and forwarded."""
