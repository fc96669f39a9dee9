"""Drift detection: on errors, on the model's confidence, and on the inputs.

`LiveDrift` takes in what the loop sees and gives `DriftSignal`s, one for each change.
Everything here is a pure rule: no clock, no I/O.
"""
