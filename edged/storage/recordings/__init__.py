"""Recorded data in files: npz, CSV, Parquet, JSON lines, line protocol, Home Assistant's recorder."""
