"""Where a run meets what a mutant would make of a place, and comes to another value: only such a run can notice it.

A run that never does is the same with the mutant and without. So each judge is run once with every place watched, and a
mutant meets only the judges that it infects (Just et al., "Efficient mutation analysis by propagating and partitioning
infected execution states", ISSTA 2014).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

from lab.mutants.code import forget_cached, recoded
from lab.mutants.operators import Key, changes, decisive

_WATCHER = "__watcher__"


class Watcher:
    """Collects the keys of infected places; its methods are what watched code calls."""

    def __init__(self) -> None:
        self.infected: set[Key] = set()
        self._modules: list[str] = []

    def watch(self, module: str) -> None:
        """Its code calls the methods below from now on."""
        vars(sys.modules[module])[_WATCHER] = self
        self._modules.append(module)

    def begin(self) -> None:
        """Another judge begins: nothing is infected yet, and what a cache would answer is evaluated."""
        self.infected.clear()
        for module in self._modules:
            forget_cached(module)

    def value(self, keys: tuple[Key, ...], right: Callable[[], object], *wrongs: Callable[[], object]) -> object:
        """What the place comes to; those of ``wrongs`` that would come to something else are infected."""
        try:
            found = right()
        except Exception:
            self.infected.update(keys)
            raise
        for key, wrong in zip(keys, wrongs, strict=True):
            if key not in self.infected and _differs(found, wrong):
                self.infected.add(key)
        return found

    def reached(self, keys: tuple[Key, ...]) -> None:
        """The places were reached, and would come to something else for all that is known."""
        self.infected.update(keys)

    def met(self, key: Key, condition: object, would: bool) -> object:
        """A condition; that it holds, or not, is what the mutant changes."""
        if bool(condition) is would:
            self.infected.add(key)
        return condition


def _differs(found: object, wrong: Callable[[], object]) -> bool:
    try:
        other = wrong()
        return other is not found and (type(other) is not type(found) or bool(other != found))
    except Exception:  # noqa: BLE001  whatever it raises, the place does not
        return True


@contextmanager
def watched(modules: Iterable[tuple[str, Path, bool]]) -> Iterator[Watcher]:
    """Watch every place of these modules (name, file, whether it is pure) meanwhile, in this process and its children.

    In one that is not pure nothing is evaluated twice: each place that is reached counts as infected.
    """
    watcher, undone = Watcher(), list[Callable[[], None]]()
    try:
        for module, path, pure in modules:
            watcher.watch(module)
            undone.append(recoded(module, ast.unparse(_instrumented(module, path, pure=pure)), path))
        yield watcher
    finally:
        for undo in undone:
            undo()


def _instrumented(module: str, path: Path, *, pure: bool) -> ast.AST:
    text = path.read_text()
    tree, pristine = ast.parse(text), list(decisive(ast.parse(text)))
    numbers = {id(node): number for number, node in enumerate(decisive(tree))}
    return ast.fix_missing_locations(_Instrument(module, numbers, pristine, pure=pure).visit(tree))


class _Instrument(ast.NodeTransformer):
    """Puts a call of the watcher in the place of each node that can be made wrong."""

    def __init__(self, module: str, numbers: dict[int, int], pristine: list[ast.AST], *, pure: bool) -> None:
        self._module = module
        self._numbers = numbers
        self._pristine = pristine
        self._pure = pure

    def visit(self, node: ast.AST) -> ast.AST:
        """The node, or what is evaluated in its place."""
        number = self._numbers.get(id(node))
        right = self._pristine[number] if number is not None else None
        count = len(list(changes(right))) if right is not None else 0
        found: ast.AST = self.generic_visit(node)
        if number is None or right is None or count == 0:
            return found
        keys = [ast.parse(repr((self._module, number, choice)), mode="eval").body for choice in range(count)]
        match found:
            case ast.comprehension(ifs=ifs):
                found.ifs = [_call("met", key, test, ast.Constant(False)) for key, test in zip(keys, ifs, strict=True)]
            case ast.If(test=test):
                found.test = _call("met", keys[0], test, ast.Constant(True))
            case ast.AugAssign(value=value):
                found.value = _reached(keys, value)
            case ast.expr():
                return self._evaluated(keys, right, found)
        return found

    def _evaluated(self, keys: list[ast.expr], right: ast.AST, found: ast.expr) -> ast.expr:
        if not self._pure or any(map(_happens_once, ast.walk(right))):
            return _reached(keys, found)
        wrongs = []
        for choice in range(len(keys)):
            wrong = deepcopy(right)
            list(changes(wrong))[choice][1]()
            wrongs.append(_lambda(wrong))
        return _call("value", ast.Tuple([*keys], ast.Load()), _lambda(found), *wrongs)


def _happens_once(node: ast.AST) -> bool:
    """It means something else inside of a lambda, or the second time: an iterator is used up."""
    match node:
        case ast.NamedExpr() | ast.Await() | ast.Yield() | ast.YieldFrom() | ast.Call(func=ast.Name(id="next")):
            return True
        case ast.Call(func=ast.Name(id="any" | "all" | "min" | "max" | "sum"), args=[ast.Name()]):
            return True
    return False


def _reached(keys: list[ast.expr], found: ast.expr) -> ast.expr:
    """The keys are told before it is evaluated, which may raise."""
    told = _call("reached", ast.Tuple([*keys], ast.Load()))
    return ast.Subscript(ast.Tuple([told, found], ast.Load()), ast.Constant(1), ast.Load())


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name(_WATCHER, ast.Load()), name, ast.Load()), list(arguments), [])


def _lambda(body: ast.AST) -> ast.Lambda:
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(nothing, body)  # type: ignore[arg-type]
