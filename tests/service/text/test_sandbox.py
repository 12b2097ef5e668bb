"""Templates are bounded, know no clock and no chance, and see what `transformers` would give them."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count

import pytest
from headstart.text.content import Content, outside_value, plain_text
from headstart.text.sandbox import Budget, BudgetError, Sandbox, compile_template, to_json
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from transformers.utils.chat_template_utils import render_jinja_template

TEXTS = st.text('a"\\\n\x7f<é🌶\U000103ff', max_size=6)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab\\u", max_size=3), inner, max_size=3),
    max_leaves=8,
)


def never() -> float:
    """A clock that stands still: only steps and sizes are left to stop a template."""
    return 0.0


def run(source: str, *, clock: Callable[[], float] = never, max_steps: int = 20_000, **variables: object) -> str:
    budget = Budget(max_chars=100_000, max_steps=max_steps, max_cpu_s=1.0, clock=clock)
    return plain_text(Sandbox(budget).run(compile_template(source), variables))


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{% for i in range(9000) %}{% for j in range(9000) %}{% endfor %}{% endfor %}",
        "{% set n = range(9000) | list %}{% for i in n %}{% for j in n %}{% endfor %}{% endfor %}",
        "{% for i in range(9000) if i < 0 %}{% endfor %}" * 3,
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for i in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
        "{% set s = namespace(x='abcdefgh') %}{% for i in range(40) %}{% set s.x = s.x ~ s.x %}{% endfor %}",
        "{% set s = namespace(x='abcdefgh') %}{% for i in range(40) %}{% set s.x = s.x + s.x %}{% endfor %}",
        "{% set s = namespace(x=[1, 2, 3]) %}{% for i in range(40) %}{% set s.x = s.x + s.x %}{% endfor %}",
        "{% set s = namespace(x=9 ** 9) %}{% for i in range(40) %}{% set s.x = s.x * s.x %}{% endfor %}",
        "{% for i in range(9000) %}{{ 'x' * 1000 }}{% endfor %}",
        "{{ 'x' * 10 ** 10 }}",
        "{{ [1] * 10 ** 10 }}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ 'x'.center(10 ** 10) }}",
        "{{ 'x'.ljust(10 ** 10) }}",
        "{{ '7'.zfill(10 ** 10) }}",
        "{{ '\t'.expandtabs(10 ** 10) }}",
        "{{ '{:>9999999999}'.format('x') }}",
        "{{ '{:>{w}}'.format('x', w=10 ** 10) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%*d' % (10 ** 10, 1) }}",
        "{{ '%9999999999d' | format(1) }}",
        "{{ ('x' * 5000).replace('x', 'y' * 5000) }}",
        "{{ ('x' * 5000) | replace('x', 'y' * 5000) }}",
        "{{ ('x' * 5000).replace('', 'y' * 5000) }}",
        "{{ 'x' | indent(10 ** 10) }}",
        "{{ [1] | tojson(indent=10 ** 10) }}",
    ],
)
def test_a_template_that_wants_too_much_is_stopped(source: str) -> None:
    with pytest.raises((BudgetError, RecursionError)):
        run(source)


def test_time_stops_a_template_too() -> None:
    ticks = count()
    with pytest.raises(BudgetError, match="steps"):
        run("{% for i in range(100) %}{% endfor %}", clock=lambda: next(ticks) / 50)


@pytest.mark.parametrize(
    "source",
    [
        "{{ [1, 2] | random }}",
        "{{ 'x' | center(9) }}",
        "{{ 'x' | wordwrap(9) }}",
        "{{ [1] | batch(9) }}",
        "{% include 'x' %}",
    ],
)
def test_what_is_not_offered_does_not_compile_or_run(source: str) -> None:
    with pytest.raises((TemplateError, TypeError)):
        run(source)


@pytest.mark.parametrize("name", ["lipsum", "cycler", "joiner", "strftime_now", "now"])
def test_nothing_that_depends_on_time_or_chance_is_defined(name: str) -> None:
    assert run(f"{{{{ {name} is defined }}}}") == "False"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ dict.__globals__['x'] }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{% set s = namespace(_x=1) %}",
        "{% set s = namespace() %}{% set s._x = 1 %}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ text.is_outside.__class__.__mro__ }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox_or_change_its_input(source: str) -> None:
    with pytest.raises(SecurityError):
        run(source, messages=[{"role": "user"}], text=Content.outside("x"))


FEATURES = """
{%- set state = namespace(total=0) %}
{%- for name, value in values | dictsort %}
    {%- if loop.index > 3 %}{%- break %}{%- endif %}
    {%- set state.total = state.total + value %}
    {{- name | upper ~ '=' ~ value }}{{ ', ' if not loop.last }}
{%- endfor %}
    {% generation %}inside {{ state.total }}{% endgeneration %}
{{ values.items() | list | length }} {{ '%s and %5.1f' % ('x', 2.25) }} {{ '{} {a!r}'.format(1, a='b') }}
{{ text | trim | capitalize }} {{ text | title }} {{ text.strip().split(' ') | join('+') }} {{ text | indent(4, true) }}
{{ text | tojson }} {{ text | tojson(ensure_ascii=true) }} {{ values | tojson(indent=2) }} {{ missing is defined }}
{{ [3, 1, 2] | sort | map('string') | join(',') }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ text[2:5] }} {{ text | length }} {{ 'é' in text }} {{ text[-1] }}{{ text | first }}{{ text | list | last }}
{{ text | lower | replace('é', 'e') }} {{ text == text ~ '' }} {{ (text ~ '!') | trim | upper }} {{ dict(a=1).a }}
{% macro wrap(x, y='?') %}<{{ x }}{{ y }}>{% endmacro %}{{ wrap(text) | trim }}{{ wrap(text, y=text) }}
{% set block %} {{ text }} {% endset %}{{ block | trim }} {{ loop is defined }} {{ range(3) | list }}
"""

ENDS = "{{ text[-1] }}{{ text | first }}{{ text | list | last }}"


@pytest.mark.parametrize("text", ["", " ", "  été à la mer\n\n  x ", 'a "b" \\ <c>', "🌶\U000103ff ß"])
def test_templates_render_as_in_transformers(text: str) -> None:
    values = {"b": 2, "a": 1, "d": 4, "c": 3}
    chat = [{"role": "user", "content": "hi"}]
    source = FEATURES if text else FEATURES.replace(ENDS, "")
    rendered, _ = render_jinja_template([chat], chat_template=source, text=text, values=values)
    assert run(source, messages=chat, text=Content.outside(text), values=values) == rendered[0]


@given(value=JSON_VALUES, ensure_ascii=st.booleans(), indent=st.sampled_from([None, 0, 4]), sort_keys=st.booleans())
def test_tojson_writes_what_transformers_writes(
    value: object, ensure_ascii: bool, indent: int | None, sort_keys: bool
) -> None:
    marked = outside_value(value, lambda _text: None)
    text = to_json(marked, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)
    assert plain_text(text) == json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)
