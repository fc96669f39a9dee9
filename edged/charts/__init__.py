"""Pages that a person opens in a browser: one file each, nothing loaded from elsewhere."""
