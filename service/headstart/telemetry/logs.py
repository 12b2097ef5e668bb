"""What a pod tells about itself in log lines. No prompt, output or token id is ever logged.

Knows nothing of settings or requests: the composition root says how. State is the standard library's logging tree.
"""

from __future__ import annotations

import json
import logging
import sys
import time

# gRPC's words for a call whose client has gone while its status was sent: its deadline passed as the stream ended.
_GRPC_LOGGER = "grpc._cython.cygrpc"
_NOT_SENT = "ExecuteBatchError raised in core by servicer method"
_GONE = ("GRPC_CALL_ERROR_TOO_MANY_OPERATIONS", "SendStatusFromServerOperation")


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
    handler.addFilter(_is_worth_a_line)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """False where gRPC calls it an error, after the handler has returned, that nobody is left to take the status."""
    if record.name != _GRPC_LOGGER or not record.exc_info or not record.getMessage().startswith(_NOT_SENT):
        return True
    told = str(record.exc_info[1])
    return not any(words in told for words in _GONE)
