"""The processes: one supervisor, its workers, how they come, go and are replaced, and what operators are told."""
