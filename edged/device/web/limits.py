"""Limits for clients of the web interface."""

from __future__ import annotations

MAX_BODY = 1024**2  # bytes of a request, also inflated
MAX_ROWS = 1024  # rows or records in one request
MAX_REQUESTS = 64  # in progress; further ones get 503
MAX_CONNECTIONS = 128  # open on one socket, idle ones included; further ones are closed without a response
MAX_STREAMS = 20  # open event streams; further ones get 503
MAX_HEAD = 32 * 1024  # bytes of the first line and the headers of a request
ANSWER_SECONDS = 10.0  # longest wait for a prediction or a command's response
CLIENT_SECONDS = 60.0  # longest wait for a client to send its next request, or to take its answer
