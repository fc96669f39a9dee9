"""HTTP interfaces for programs: inference protocol, metrics, events, commands."""
