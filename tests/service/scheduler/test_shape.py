"""`schedule()` stays readable in one sitting: 60 lines, 150 with every method of the scheduler's own that it reaches.

Lines of code are counted, without docstrings, comments and blank lines. Not counted is what it calls of the parts that
it holds (the block manager, the gate, the plan's builder, the queues): each of them is read on its own.
"""

import ast
from pathlib import Path

import headstart.scheduler.scheduler as module


def _methods() -> dict[str, ast.FunctionDef]:
    tree = ast.parse(Path(module.__file__).read_text())
    (scheduler,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {node.name: node for node in scheduler.body if isinstance(node, ast.FunctionDef)}


def _num_code_lines(function: ast.FunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) else function.body
    lines = {line for node in body for child in ast.walk(node) for line in _span(child)}
    return len(lines | {function.lineno})


def _span(node: ast.AST) -> range:
    return range(node.lineno, node.end_lineno + 1) if isinstance(node, ast.stmt | ast.expr) else range(0)


def _reached(name: str, methods: dict[str, ast.FunctionDef], seen: set[str]) -> set[str]:
    seen.add(name)
    for node in ast.walk(methods[name]):
        is_own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
        if is_own and node.attr in methods and node.attr not in seen:
            _reached(node.attr, methods, seen)
    return seen


def test_schedule_and_all_it_reaches_can_be_read_in_one_sitting() -> None:
    methods = _methods()
    lines = {name: _num_code_lines(methods[name]) for name in _reached("schedule", methods, set())}
    assert lines["schedule"] <= 60, lines
    assert sum(lines.values()) <= 150, lines
    assert "commit" not in lines
