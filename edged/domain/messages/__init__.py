"""What goes over MQTT, as JSON Schema (draft 2020-12): requests, answers, and all that is published.

Plain tables, so that a daemon that validates requests by them needs no more memory than they take.
"""
