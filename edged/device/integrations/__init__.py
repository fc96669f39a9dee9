"""Other systems that the device appears in: Home Assistant, Sparkplug B."""
