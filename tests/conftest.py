"""For every test: let PyTorch's threads sleep while they wait for each other.

By default they spin. On a machine that is busy with anything else a thread then waits, spinning, for one that gets no
core, and the reference forward pass takes a hundred times as long.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
