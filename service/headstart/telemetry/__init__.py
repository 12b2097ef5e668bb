"""What a process tells about itself: log lines, spans and metrics."""
