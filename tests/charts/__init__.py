"""Tests of the shared design and of charts."""
