"""What is asked of a deployment, by class, and kept as it came; nothing is judged here."""
