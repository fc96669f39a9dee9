"""`make test-systemd`: edged's Debian package on a booted Debian 12, with systemd as its first process."""
