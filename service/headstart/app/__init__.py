"""The composition root: the only place that reads settings and that knows every part by name."""
