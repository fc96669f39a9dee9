"""Tests of edged: they mirror the package."""
