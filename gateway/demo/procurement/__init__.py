"""A procurement story: questions, late answers and long work, across replicas that come and go."""
