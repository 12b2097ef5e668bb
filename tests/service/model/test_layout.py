"""What follows from a model's shapes."""

from __future__ import annotations

from headstart.model.layout import attention_span
from headstart.model.source import BUILT_IN, resolve_source
from headstart.model.weights import open_checkpoint


def test_on_a_context_of_its_span_a_token_attends_as_much_as_it_multiplies() -> None:
    config = open_checkpoint(resolve_source(BUILT_IN)).config
    products = 576 * (2 * 576 + 2 * 192 + 3 * 1536)
    keys_and_values = 2 * 9 * 64
    assert abs(attention_span(config) * keys_and_values - products) < keys_and_values
