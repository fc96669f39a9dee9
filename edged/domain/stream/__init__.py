"""Rules of the sample stream: schema, windows, admission, commits, anomalies."""
