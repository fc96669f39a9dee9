"""What the device says of itself: status, states and metrics, collected and published periodically."""
