"""`make test-arm64`: the tests that concern a device, in an emulated ARM64 Debian."""
