"""The coordinator: rounds opened, updates admitted, models made and announced."""
