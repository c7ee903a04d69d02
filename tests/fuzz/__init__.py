"""Fuzzing: what reads a stranger's bytes is held to rules that no input may break, guided by coverage.

`make fuzz` runs it (campaign.py); what it finds, and what covers the code, stays in tests/vectors/fuzz. The ordinary
suite replays all of that.
"""
