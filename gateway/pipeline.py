"""The corridor: the order of the rooms, and nothing else.

Each room adds one fact to the `Passage`. Any room may refuse; nothing is forwarded before its decision is durable.
"""
