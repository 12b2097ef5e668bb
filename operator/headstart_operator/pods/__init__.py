"""The pods as they are: found, connected, followed, and as one fleet."""
