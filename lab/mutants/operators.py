"""The mutation operators: one small wrong thing in one place of a module.

Not those of a library: cosmic-ray and mutmut know operators and constants, but this code decides by the keywords of
``replace``, by the conditions of comprehensions and by early returns. Those are mutated here too; texts and types are not.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_COUNTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}
_DEFAULTED = ("replace", "Outcome")
"""Calls whose keywords have defaults: leaving one out still runs."""

_TEXTS = frozenset({"message", "reason", "notices", "waiting"})
"""Keywords that only describe."""

Key = tuple[str, int, int]
"""Of a place: module, number of the node, which of the things that can be done to it."""


@dataclass(frozen=True)
class Mutant:
    """A module with one thing wrong."""

    key: Key
    name: str
    """Module, line and what was done there."""
    module: str
    path: Path
    right: str
    """The module's source as it is, without comments."""
    wrong: str
    diff: str


@dataclass(frozen=True)
class Place:
    """Where one small thing can be made wrong."""

    module: str
    path: Path
    line: int
    what: str
    node: int
    choice: int

    @property
    def key(self) -> Key:
        """Which place it is."""
        return self.module, self.node, self.choice

    @property
    def name(self) -> str:
        """Module, line and what is done there."""
        return f"{self.module}:{self.line} {self.what}"

    def mutant(self) -> Mutant | None:
        """The module with that made wrong; None where it reads the same."""
        tree = ast.parse(self.path.read_text())
        right = ast.unparse(tree)
        list(changes(list(decisive(tree))[self.node]))[self.choice][1]()
        wrong = ast.unparse(ast.fix_missing_locations(tree))
        lines = difflib.unified_diff(right.splitlines(), wrong.splitlines(), lineterm="", n=1)
        diff = "\n".join(lines).partition("@@\n")[2]
        return Mutant(self.key, self.name, self.module, self.path, right, wrong, diff) if diff else None


def places(module: str, path: Path) -> Iterator[Place]:
    """Every place of a module, in the order of its source."""
    for number, node in enumerate(decisive(ast.parse(path.read_text()))):
        at = node.target if isinstance(node, ast.comprehension) else node
        for choice, (what, _) in enumerate(changes(node)):
            yield Place(module, path, getattr(at, "lineno", 0), what, number, choice)


def decisive(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes inside of functions that are no text, no signature and no pattern, in the order of the source."""
    for child in ast.iter_child_nodes(tree):
        match child:
            case ast.JoinedStr() | ast.arguments() | ast.pattern():
                continue
            case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
                for statement in body:
                    yield from decisive(ast.Expr(statement))  # type: ignore[arg-type]
            case ast.ClassDef(body=body):
                functions = [part for part in body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
                yield from decisive(ast.Module([*functions], []))
            case ast.AnnAssign(value=ast.expr() as value) if not isinstance(tree, ast.Module):
                yield from decisive(ast.Expr(value))
            case ast.Call(func=ast.Name(id="isinstance"), args=[asked, _]):
                yield from decisive(ast.Expr(asked))
            case _ if not isinstance(tree, ast.Module):
                yield child
                yield from decisive(child)


def changes(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    """What can be done to a node, and the function that does it."""
    yield from _other_operators(node)
    match node:
        case ast.IfExp(body=body, orelse=orelse):
            yield "always the first choice", partial(setattr, node, "orelse", body)
            yield "always the second choice", partial(setattr, node, "body", orelse)
        case ast.comprehension(ifs=[_, *_] as conditions):
            for index in range(len(conditions)):
                yield "filter dropped", partial(conditions.__delitem__, index)
        case ast.Constant(value=bool() as value):
            yield f"{value} becomes {not value}", partial(setattr, node, "value", not value)
        case ast.Constant(value=int() | float() as value):
            yield f"{value} becomes {value + 1}", partial(setattr, node, "value", value + 1)
        case ast.Call(func=ast.Name() as called, keywords=keywords):
            yield from _other_calls(called, keywords)
        case ast.If(orelse=[]):
            yield "branch never taken", partial(setattr, node, "test", ast.Constant(False))
        case ast.AugAssign():
            yield "not counted", partial(setattr, node, "value", ast.Constant(0))


def _other_operators(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    match node:
        case ast.Compare(ops=[op]):
            for other in _COMPARED.get(type(op), ()):
                yield f"{type(op).__name__} becomes {other.__name__}", partial(setattr, node, "ops", [other()])
        case ast.BoolOp(op=op, values=values):
            other_op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield f"{type(op).__name__} becomes {type(other_op).__name__}", partial(setattr, node, "op", other_op)
            for index in range(len(values)):
                yield f"condition {index + 1} dropped", partial(values.__delitem__, index)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not dropped", partial(setattr, node, "operand", ast.UnaryOp(ast.Not(), operand))
        case ast.BinOp(op=op) if type(op) in _COUNTED:
            yield (
                f"{type(op).__name__} becomes {_COUNTED[type(op)].__name__}",
                partial(setattr, node, "op", _COUNTED[type(op)]()),
            )


def _other_calls(called: ast.Name, keywords: list[ast.keyword]) -> Iterator[tuple[str, Callable[[], None]]]:
    if called.id in _CALLED and not keywords:
        yield f"{called.id} becomes {_CALLED[called.id]}", partial(setattr, called, "id", _CALLED[called.id])
    for index, keyword in enumerate(keywords if called.id in _DEFAULTED else []):
        if keyword.arg not in _TEXTS:
            yield f"{keyword.arg} left out", partial(keywords.__delitem__, index)
