"""Sockets, listener, guard, authentication and routes of the web server."""
