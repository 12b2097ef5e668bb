"""Jinja for templates that come with a model: sandboxed, bounded in time and memory, and free of dates and chance.

A template sees what `transformers` gives it (block trimming, loop controls, `{% generation %}`, `tojson`, `namespace`,
`raise_exception`), but not the filters that can make large values or random ones. The same input renders to the same
text at any time: there is no clock. `strftime_now` is absent, so that templates which ask for it first use their own
default; templates that call it unasked get one fixed date.

A `Sandbox` is made for one render and owns its `Budget`; the compiled code is shared. Nothing here knows messages.
"""

from __future__ import annotations

import json
import re
import string
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from types import CodeType
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS, do_format, do_indent, do_join, do_title
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from headstart.text.content import MARK, Content, joined

_FILTERS = (
    "abs capitalize count d default dictsort first float groupby int items last length list lower map max min reject "
    "rejectattr reverse safe select selectattr sort string sum trim unique upper"
)
_MAX_RANGE = 10_000
_MAX_INDENT = 16
_MAX_INT_BITS = 4096
_WIDE_FIELD = re.compile(r"%[^a-zA-Z%]*(\*|\d{4})")
_FIXED_DATE = datetime(2024, 7, 26)
"""The date to which the Llama 3 templates default."""


class BudgetError(TemplateError):
    """The template wants more time or memory than a chat may take."""


class Budget:
    """What one render may still use. Mutable, owned by its sandbox."""

    def __init__(self, *, max_chars: int, max_steps: int, max_cpu_s: float, clock: Callable[[], float]) -> None:
        self._max_chars = max_chars
        self._num_steps_left = max_steps
        self._max_cpu_s = max_cpu_s
        self._clock = clock
        self._deadline_s = clock() + max_cpu_s

    def step(self) -> None:
        """Count one turn of a loop or one call."""
        self._num_steps_left -= 1
        if self._num_steps_left < 0 or self._clock() > self._deadline_s:
            raise BudgetError("the chat template takes too many steps")

    def check_size(self, size: int) -> None:
        """`size` in characters or list items, of one value."""
        if size > self._max_chars:
            raise BudgetError("the chat template makes too large a text")


class _CodeGenerator(CodeGenerator):
    """Counts the turns of every loop, and glues with `~` so that origins survive."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802 (jinja's name)
        counted = nodes.Call(nodes.EnvironmentAttribute("counted"), [node.iter], [], None, None)
        node.iter = counted.set_lineno(node.lineno)
        super().visit_For(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 (jinja's name)
        self.write("environment.concat([")
        for part in node.nodes:
            self.write("str(")
            self.visit(part, frame)
            self.write("), ")
        self.write("])")


class _Generation(Extension):
    """`{% generation %}` marks what an assistant wrote, for training; here it only renders its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja's name)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _TemplateNamespace(Namespace):
    """Like `transformers`: no attribute that starts with an underscore."""

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


class Sandbox(ImmutableSandboxedEnvironment):
    """One render's environment."""

    code_generator_class = _CodeGenerator
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, budget: Budget, *, has_fixed_date: bool = False) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], optimized=False)
        self._budget = budget
        self.filters = {name: FILTERS[name] for name in _FILTERS.split()}
        self.filters |= {"tojson": to_json, "join": _marked_join, "format": self._format, "replace": self._replace}
        self.filters |= {"indent": _indent, "title": _title}
        self.globals = {"range": self._range, "raise_exception": _raise_exception}
        self.globals |= {"namespace": _namespace, "dict": _new_dict}
        if has_fixed_date:
            self.globals["strftime_now"] = _fixed_date

    def run(self, code: CodeType, variables: dict[str, Any]) -> str:
        """The rendered text, in marked form."""
        template = self.template_class.from_code(self, code, self.make_globals(None))
        pieces = []
        size = 0
        for piece in template.generate(variables):
            size += len(piece)
            self._budget.check_size(size)
            pieces.append(piece)
        return joined(pieces)

    def concat(self, pieces: Iterable[str]) -> str:
        """What macros, `{% set %}` blocks and `~` glue with."""
        pieces = list(pieces)
        self._budget.step()
        self._budget.check_size(sum(map(len, pieces)))
        if any(isinstance(piece, Content) or MARK in piece for piece in pieces):
            return joined(pieces)
        return "".join(pieces)

    def counted(self, values: Any) -> Iterable[Any]:
        """The values of a loop, each of which is a step."""
        return _Counted(values, self._budget)

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        self._budget.step()
        name = getattr(function, "__name__", "")
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            self._check_text_method(owner, name, args, kwargs)
        return _marked(super().call(context, function, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Also refuses field widths: a few characters of them make gigabytes."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and any(spec for _, _, spec, _ in string.Formatter().parse(value.__self__)):
            raise BudgetError("a chat template must not use format specifications")
        return wrapped

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self._budget.step()
        if operator == "+" and isinstance(left, Sequence) and isinstance(right, Sequence):
            self._budget.check_size(len(left) + len(right))
        elif operator == "*":
            self._check_product(left, right)
        elif operator == "**" and isinstance(left, int):
            self._check_bits(left.bit_length() * max(0, int(right)))
        elif operator == "%" and isinstance(left, str):
            _check_field_widths(left)
        return _marked(super().call_binop(context, operator, left, right))

    def _check_product(self, left: Any, right: Any) -> None:
        for value, factor in ((left, right), (right, left)):
            if isinstance(value, Sequence) and isinstance(factor, int):
                self._budget.check_size(len(value) * factor)
        if isinstance(left, int) and isinstance(right, int):
            self._check_bits(left.bit_length() + right.bit_length())

    def _check_bits(self, num_bits: int) -> None:
        if num_bits > _MAX_INT_BITS:
            raise BudgetError("the chat template makes too large a number")

    def _check_text_method(self, text: str, name: str, args: Any, kwargs: Any) -> None:
        if name in ("center", "ljust", "rjust", "zfill", "expandtabs", "translate"):
            raise BudgetError(f"a chat template must not call {name}()")
        if name == "replace":
            self._check_replace(text, *args, **kwargs)

    def _check_replace(self, text: str, old: str, new: str, count: int = -1) -> None:
        num_found = text.count(old) if count < 0 else count
        self._budget.check_size(len(text) + num_found * len(new))

    def _replace(self, value: Any, old: Any, new: Any, count: int | None = None) -> str:
        text = str(value)
        self._check_replace(text, str(old), str(new))
        return text.replace(str(old), str(new), -1 if count is None else count)

    def _format(self, text: Any, *args: Any, **kwargs: Any) -> Any:
        _check_field_widths(str(text))
        return _marked(do_format(text, *args, **kwargs))

    def _range(self, *args: int) -> range:
        numbers = range(*args)
        if len(numbers) > _MAX_RANGE:
            raise BudgetError(f"a chat template must not count over more than {_MAX_RANGE} numbers")
        return numbers


class _Counted:
    """An iterable that counts its turns, with a length where the original has one."""

    def __init__(self, values: Any, budget: Budget) -> None:
        self._values = values
        self._budget = budget

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        for value in self._values:
            self._budget.step()
            yield value


def compile_template(source: str) -> CodeType:
    """Raises jinja2.TemplateError when the source is no template or asks for what is not offered."""
    code: CodeType = _idle_sandbox().compile(source)
    return code


def variables_of(source: str) -> set[str]:
    """Names that the template may read from what it is given. Raises as `compile_template`."""
    return find_undeclared_variables(_idle_sandbox().parse(source))


def _idle_sandbox() -> Sandbox:
    """One that may run nothing."""
    return Sandbox(Budget(max_chars=0, max_steps=0, max_cpu_s=0.0, clock=time.thread_time))


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As `transformers` does it (no HTML escapes); origins survive, in escaped characters too."""
    if indent is not None and not 0 <= int(indent) <= _MAX_INDENT:
        raise BudgetError(f"tojson indents by 0 to {_MAX_INDENT}")
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    if ensure_ascii:
        text = re.sub(r"[^\x00-\x7e]", lambda match: _ascii_escape(match.group()), text)
    return Content.of(text)


def _ascii_escape(char: str) -> str:
    return char if char == MARK else json.dumps(char)[1:-1]


def _marked(value: Any) -> Any:
    """Text that was made outside of `Content` gets its origins back."""
    if type(value) is str and MARK in value:
        return Content.of(value)
    return value


def _indent(text: str, width: int | str = 4, *flags: bool, **named_flags: bool) -> Any:
    if (len(width) if isinstance(width, str) else width) > _MAX_INDENT:
        raise BudgetError(f"indent takes at most {_MAX_INDENT} characters")
    return _marked(do_indent(text, width, *flags, **named_flags))


def _title(text: Any) -> str:
    return text.changed(do_title(text.plain)) if isinstance(text, Content) else do_title(text)


def _marked_join(*args: Any, **kwargs: Any) -> Any:
    return _marked(do_join(*args, **kwargs))


_marked_join.__dict__.update(do_join.__dict__)  # jinja notes there that the filter wants its evaluation state


def _check_field_widths(text: str) -> None:
    if _WIDE_FIELD.search(text):
        raise BudgetError("a chat template must not format to more than 999 characters")


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _namespace(*args: Any, **kwargs: Any) -> Namespace:
    attributes = dict(*args, **kwargs)
    for name in attributes:
        _check_attribute(name)
    return _TemplateNamespace(attributes)


def _check_attribute(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError("a chat template must not set attributes that start with an underscore")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _fixed_date(pattern: str) -> str:
    if re.search(r"%[^a-zA-Z%]*\d", pattern):
        raise BudgetError("strftime_now takes no widths")
    return _FIXED_DATE.strftime(pattern)
