"""The loop: one file a stage, in the order in which data flows."""
