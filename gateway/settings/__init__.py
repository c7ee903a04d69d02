"""The settings of each group of rooms; config.py makes one configuration of them, and nobody else knows them."""
