"""What survives a power cut: the only place that knows sqlite3 and fsync."""
