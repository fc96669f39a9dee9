"""Models, candidates, checkpoints and bundles on disk."""
