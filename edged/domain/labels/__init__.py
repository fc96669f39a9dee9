"""Labels: which are asked for, which cannot be trusted, and who contradicts the others."""
