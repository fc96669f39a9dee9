"""The offline phase: from a model to a bundle. Nothing here is imported by the daemon."""
