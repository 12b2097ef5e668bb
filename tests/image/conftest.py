"""`make test-image` builds the images and names their folder in IMAGES; nobody else collects the tests of them."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("IMAGES") else ["test_images.py"]
