"""The revisions. `NNNN_what.py` has the id `NNNN` and follows the number before it."""
