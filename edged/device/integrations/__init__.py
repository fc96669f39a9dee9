"""Other systems that the device appears in: Home Assistant, Sparkplug B."""

ANNOUNCED = "home_assistant"  # the registry's value: what the broker retains for Home Assistant
