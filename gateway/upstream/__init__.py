"""The way to the servers behind the house: one port, its HTTP adapter, and the replicas of a server."""
