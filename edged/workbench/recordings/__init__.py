"""A recorded stream in the shape of the task that is configured for it."""
