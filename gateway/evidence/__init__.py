"""The evidence pack: a deployment is asked, what came is kept, and each verdict is derived from what was kept."""
