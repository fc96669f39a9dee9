"""Files and databases that survive a power cut."""
