"""Status, retained states and metrics of the device: collected, and published periodically."""
