"""Which calls a test will make before anything can make it decide otherwise.

The calls are known from the text of the tests: statement after statement of ``check``, as long as every call of the
candidate is made whatever the earlier ones return, with literal arguments. They are sent to the candidate in one go, in
order, and their answers flow to the grader as they come; this saves most of the round trips and changes no verdict: the
grader compares each call that the tests really make with the plan and says ``again`` where they differ.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from proofbox.model.task import FunctionTests
from proofbox.verify.inside.plain import NotPlain, encode

MAX_PLAN: Final = 128 * 1024
"""Bytes of all planned calls of a task together: they fit into a pipe's first credit, so sending them never waits."""

_PLAIN_NODES: Final = (
    ast.Attribute,
    ast.BinOp,
    ast.Constant,
    ast.List,
    ast.Name,
    ast.Set,
    ast.Subscript,
    ast.Tuple,
    ast.UnaryOp,
)
"""Expressions whose parts are all evaluated, in the order in which they are written."""


class _Unsure(Exception):
    """From here on it depends on what happens at run time."""


class _Calls:
    """Walks one test in the order of evaluation and collects its calls."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self.found: list[bytes] = []
        self.size = 0
        self.mentioning: set[ast.AST] = set()
        self.sets = False

    def look(self, node: ast.AST) -> bool:
        """Whether it names the function; notes this of every part of it, and whether there is a set, in one walk."""
        kind = type(node)
        if kind is ast.Constant:
            return False
        if kind is ast.Name:
            found = node.id in self.names  # type: ignore[attr-defined]
        else:
            self.sets = self.sets or kind is ast.Set
            found = False
            for name in node._fields:
                part = getattr(node, name, None)
                if type(part) is list:
                    for each in part:
                        if isinstance(each, ast.AST) and self.look(each):
                            found = True
                elif isinstance(part, ast.AST) and self.look(part):
                    found = True
        if found:
            self.mentioning.add(node)
        return found

    def statement(self, node: ast.stmt) -> None:
        self.sets = False
        self.look(node)
        match node:
            case ast.Assert(test=expression) | ast.Expr(value=expression):
                self.expression(expression)
            case ast.Assign(targets=[ast.Name(id=name)], value=expression) if name not in self.names:
                self.expression(expression)
            case ast.Import() | ast.ImportFrom() | ast.Pass():
                pass
            case _:
                raise _Unsure

    def expression(self, node: ast.expr) -> None:
        if node not in self.mentioning:
            return
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in self.names:
                self.call(node)
            case ast.Call():
                self.parts([node.func, *node.args, *(keyword.value for keyword in node.keywords)])
            case ast.Compare(comparators=[only]):
                self.parts([node.left, only])
            case ast.Compare():
                self.parts([node.left, node.comparators[0]])
                raise _Unsure
            case ast.BoolOp():
                self.expression(node.values[0])
                raise _Unsure
            case ast.Starred(value=value):
                self.expression(value)
            case ast.Name() | ast.Dict():
                raise _Unsure  # the function itself is handed on; or keys and values alternate
            case _ if isinstance(node, _PLAIN_NODES):
                self.parts([part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)])
            case _:
                raise _Unsure

    def parts(self, nodes: list[ast.expr]) -> None:
        for node in nodes:
            self.expression(node)

    def call(self, node: ast.Call) -> None:
        try:
            args = tuple(ast.literal_eval(arg) for arg in node.args)
            kwargs = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg}
            payload = encode((args, kwargs))
        except (ValueError, TypeError, MemoryError, RecursionError, SyntaxError, NotPlain) as error:
            raise _Unsure from error
        sets = self.sets and any(isinstance(part, ast.Set) for part in ast.walk(node))
        if len(kwargs) != len(node.keywords) or sets or self.size + len(payload) > MAX_PLAN:
            raise _Unsure  # `**` is no literal; the order of a set differs between processes, and so would its bytes
        self.found.append(payload)
        self.size += len(payload)


def _checks(test: str) -> Iterator[ast.FunctionDef]:
    try:
        module = ast.parse(test)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # the grader says what is wrong with it
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check":
            yield node


@lru_cache(maxsize=4096)
def planned_calls(tests: FunctionTests) -> tuple[bytes, ...]:
    """The encoded ``(args, kwargs)`` of the first calls of ``check``, as many as are certain. Empty if none is."""
    checks = list(_checks(tests.test))
    if len(checks) != 1 or checks[0].decorator_list or len(checks[0].args.args) != 1:
        return ()
    calls = _Calls(frozenset({checks[0].args.args[0].arg, tests.entry_point}))
    try:
        for statement in checks[0].body:
            calls.statement(statement)
    except (_Unsure, RecursionError):
        pass
    return tuple(calls.found)
