"""Brokers of others, which `make test-brokers` installs."""
