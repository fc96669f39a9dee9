"""Rules that decide how good a model is: gate, paired test, mixture of experts."""
