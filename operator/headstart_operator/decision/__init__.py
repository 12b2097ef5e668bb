"""Who waits, and which pod is meant: plain calls on values, nothing that goes over a network but `catalog.py`."""
