"""Pins: which definitions of tools were accepted, who is told of others, and how a person accepts them."""
