"""Promotion: candidate -> gate -> registry -> champion, and the way back: what is durable."""
