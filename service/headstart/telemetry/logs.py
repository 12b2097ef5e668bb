"""What a pod tells about itself in log lines. No prompt, output or token id is ever logged.

Knows nothing of settings or requests: the composition root says how. State is the standard library's logging tree.
"""

from __future__ import annotations

import json
import logging
import sys
import time


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC, RFC 3339), level, logger, message, and the traceback of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def set_up_logging(*, level: str, is_json: bool) -> None:
    """Send everything of at least `level` (debug, info, warning, error) to stderr. Replaces earlier handlers."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if is_json else plain)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
