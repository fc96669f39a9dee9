"""The trainer's half of learning: what happens in its process between an order and a candidate."""
