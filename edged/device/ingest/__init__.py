"""Ingest: deliveries -> samples -> one commit -> acknowledgement; labels -> the samples they are for."""
