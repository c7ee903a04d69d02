"""How each class is judged, from a pack's bytes alone."""
