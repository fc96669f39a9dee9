"""Drift detection: on errors, on the model's confidence, and on the inputs.

`StreamWatch` and `InputDrift` take in what the loop sees and give `DriftSignal`s, one for each change.
Everything here is a pure rule: no clock, no I/O.
"""
