"""A Flower app whose nodes are edged daemons: they train and judge Flower's arrays on their own samples.

Flower: Beutel et al. 2020, "Flower: a friendly federated learning research framework".
"""
