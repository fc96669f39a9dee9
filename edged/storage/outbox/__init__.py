"""outbox.db: messages that wait for the broker."""
