"""PromQL that a policy's author wrote, confined to the policy's namespace and to what cannot invent data.

The query is taken apart by a PromQL parser, held against a list of what is allowed (everything else is refused, later
versions' syntax included), and put together again with ``namespace="…"`` in every selector: within ranges, subqueries,
offsets, aggregations and operators alike. What comes out is parsed once more and compared, because it is that text, and not
our idea of it, that Prometheus answers.
"""

import json
import math
import re
from collections.abc import Iterator
from datetime import timedelta
from functools import lru_cache
from itertools import islice

from promql_parser import (  # type: ignore[import-untyped, unused-ignore]
    AggregateExpr,
    BinaryExpr,
    Call,
    Expr,
    Matcher,
    MatchOp,
    MatrixSelector,
    NumberLiteral,
    ParenExpr,
    StringLiteral,
    SubqueryExpr,
    UnaryExpr,
    VectorSelector,
    display_duration,
    parse,
    transform,
)

from precision_operator.api.text import bounded
from precision_operator.errors import QueryInvalid
from precision_operator.signals.queries import kind_of, render

LONGEST = 4096
"""Characters."""
MOST_NODES = 64
"""Of the expression: literals, selectors, calls, operators."""
MOST_NESTED = 4 * MOST_NODES
"""Brackets, signs and binary operators: the parser's time grows with the square of their number."""
MOST_WEIGHT = 3000
"""Of all regular expressions together, in characters: the parser compiles them, in up to half a second each."""
FURTHEST = timedelta(hours=24)
"""Range, subquery or offset."""
MOST_STEPS = 1440
"""Of one subquery."""

_NESTS = re.compile(r"[-(+*/%^<>]|[=!]=|\b(?:and|or|unless|atan2)\b", re.IGNORECASE)
"""In texts too: a query needs few of them there."""
_ESCAPE_WEIGHT = 40
"""Of ``\\w`` and its like: a class of all Unicode takes as long as so many characters."""
_REPEATED = re.compile(r"{([^}]*)}?")
_FLAGS = re.compile(r"\(\?(?!:)")

FUNCTIONS = frozenset(
    {
        *(
            "abs",
            "ceil",
            "clamp",
            "clamp_max",
            "clamp_min",
            "exp",
            "floor",
            "ln",
            "log10",
            "log2",
            "round",
            "sgn",
            "sqrt",
        ),
        *("changes", "delta", "deriv", "idelta", "increase", "irate", "rate", "resets"),
        *("avg_over_time", "count_over_time", "last_over_time", "max_over_time", "min_over_time", "present_over_time"),
        *("quantile_over_time", "stddev_over_time", "stdvar_over_time", "sum_over_time"),
        *("histogram_quantile", "time", "timestamp"),
    }
)
"""Not among them: what makes a value of its absence (absent, vector, scalar), and what rewrites labels, by which a sample
would be another pod's (label_replace, label_join)."""

AGGREGATIONS = frozenset({"avg", "count", "group", "max", "min", "quantile", "stddev", "stdvar", "sum"})
"""Not among them: count_values, which makes a label of a value; topk and its like, whose choice changes every time."""


def written(query: str, namespace: str, window_seconds: float, min_steps: int) -> str:
    """The query of a policy as it is asked: its variables filled in, confined to the policy's namespace.

    Raises:
        QueryInvalid: see ``confine``.
    """
    text, refusal = _written(query, namespace, window_seconds, min_steps)
    if refusal:
        raise QueryInvalid(refusal)
    return text


@lru_cache(maxsize=1024)
def _written(query: str, namespace: str, window_seconds: float, min_steps: int) -> tuple[str, str]:
    """The query, or why it is refused: every pass asks again for both."""
    try:
        return confine(render(query, namespace, window_seconds, min_steps), namespace), ""
    except QueryInvalid as error:
        return "", str(error)


def confine(query: str, namespace: str) -> str:
    """The same query with ``namespace="<namespace>"`` in every selector.

    Raises:
        QueryInvalid: it does not parse, is no vector, is too large, names another namespace, or uses what is not allowed;
            the message says what was found and what to do.
    """
    if len(query) > LONGEST:
        raise QueryInvalid(
            f"expected at most {LONGEST} characters, found {len(query)}; put it into the admin's catalogue"
        )
    if sum(1 for _ in _NESTS.finditer(query)) > MOST_NESTED:
        raise QueryInvalid(
            f"expected at most {MOST_NESTED} brackets and signs, operators among them; put it into the admin's catalogue"
        )
    if "=~" in query or "!~" in query:
        _compilable(query)
    expression = _parsed(query)
    nodes = _few(expression)
    for node in nodes:
        _allow(node, namespace)
    if kind_of(expression) != "vector":
        raise QueryInvalid(f"expected an instant vector with a label pod, found a {kind_of(expression)}")
    if not any(isinstance(node, VectorSelector) for node in nodes):
        raise QueryInvalid("expected at least one metric, found none; name what is to be judged")

    def force(node: Expr) -> Expr | None:
        return _forced(node, namespace) if isinstance(node, VectorSelector) else None

    text: str = transform(expression, None, force).prettify()
    _same(nodes, list(_nodes(_parsed(text))), namespace)
    return text


def _parsed(query: str) -> Expr:
    try:
        return parse(query)
    except ValueError as error:
        raise QueryInvalid(f"does not parse: {bounded(str(error), 300)}; try it in Prometheus first") from None


def _compilable(query: str) -> None:
    """Refuse regular expressions that take long to compile, before the parser does it.

    The query is read with equality in their place, so that the parser finds the texts and their escapes. All texts of the
    query count: which of them are regular expressions is not known then.
    """
    nodes = _few(_parsed(query.replace("=~", "=").replace("!~", "!=")))
    matchers = [node.matchers for node in nodes if isinstance(node, VectorSelector)]
    texts = [m.value for found in matchers for m in (*found.matchers, *(m for ms in found.or_matchers for m in ms))]
    if any(map(_FLAGS.search, texts)):
        raise QueryInvalid("expected no flags in a regular expression, found (?; write both cases, as in [aA]")
    if sum(map(_weight, texts)) > MOST_WEIGHT:
        raise QueryInvalid(
            "expected simpler regular expressions: {n} counts n times, an escape as "
            f"{_ESCAPE_WEIGHT} characters, and all together at most {MOST_WEIGHT}; list the values, joined by |"
        )


def _weight(regex: str) -> int:
    """At least the characters that it stands for: as if all of it were inside of each of its repetitions."""
    counts = [int(digits) for braces in _REPEATED.findall(regex) for digits in re.findall(r"[0-9]{1,9}", braces)]
    return (len(regex) + _ESCAPE_WEIGHT * regex.count("\\")) * math.prod(max(count, 1) for count in counts)


def _few(expression: Expr) -> list[Expr]:
    """The expression and all that it is made of."""
    nodes = list(islice(_nodes(expression), MOST_NODES + 1))
    if len(nodes) > MOST_NODES:
        raise QueryInvalid(f"expected at most {MOST_NODES} parts, found more; put it into the admin's catalogue")
    return nodes


def _nodes(expression: Expr) -> Iterator[Expr]:
    """The expression and all that it is made of.

    Raises:
        QueryInvalid: there is something in it that this module does not know.
    """
    yield expression
    match expression:
        case AggregateExpr():
            children = [expression.expr] if expression.param is None else [expression.param, expression.expr]
        case BinaryExpr():
            children = [expression.lhs, expression.rhs]
        case Call():
            children = list(expression.args)
        case MatrixSelector():
            children = [expression.vector_selector]
        case ParenExpr() | SubqueryExpr() | UnaryExpr():
            children = [expression.expr]
        case NumberLiteral() | StringLiteral() | VectorSelector():
            children = []
        case _:
            raise QueryInvalid(f"expected no {type(expression).__name__}; put the query into the admin's catalogue")
    for child in children:
        yield from _nodes(child)


def _allow(node: Expr, namespace: str) -> None:
    """Refuse what may not stand in a policy's query."""
    match node:
        case Call() if node.func.name not in FUNCTIONS:
            raise QueryInvalid(
                f"function {node.func.name} is not allowed in a policy; expected one of {_list(FUNCTIONS)}"
            )
        case AggregateExpr() if str(node.op) not in AGGREGATIONS:
            raise QueryInvalid(
                f"aggregation {node.op} is not allowed in a policy; expected one of {_list(AGGREGATIONS)}"
            )
        case StringLiteral():
            raise QueryInvalid("expected no text in the query; put it into the admin's catalogue")
        case BinaryExpr():
            fill = node.modifier.fill_values if node.modifier is not None else None
            if str(node.op) == "or" or (fill is not None and (fill.lhs, fill.rhs) != (None, None)):
                raise QueryInvalid(
                    "`or` and fill put a value where data is missing; leave them out: missing is Unknown"
                )
        case MatrixSelector():
            _bounded("range", node.range)
        case SubqueryExpr():
            _no_at(node)
            _bounded("subquery", node.range)
            _bounded("offset", node.offset)
            step = node.step
            if step is None or step < timedelta(seconds=1) or (node.range or FURTHEST) > MOST_STEPS * step:
                raise QueryInvalid(
                    f"expected a subquery of at most {MOST_STEPS} steps of 1s or more; write [range:step]"
                )
        case VectorSelector():
            _no_at(node)
            _bounded("offset", node.offset)
            _selects(node, namespace)


def _selects(selector: VectorSelector, namespace: str) -> None:
    if selector.matchers.or_matchers:
        raise QueryInvalid("expected matchers joined by commas, found `or`; ask one query for each")
    matchers = selector.matchers.matchers
    named = [m for m in matchers if m.name == "__name__"]
    if not selector.name and not (len(named) == 1 and named[0].op == MatchOp.Equal and named[0].value):
        raise QueryInvalid("expected every selector to name its metric; write it before the braces")
    for matcher in matchers:
        if matcher.name == "namespace" and (matcher.op != MatchOp.Equal or matcher.value != namespace):
            raise QueryInvalid(
                f"expected no other namespace than the policy's own, found {matcher}; "
                "leave the matcher out: it is put into every selector"
            )


def _no_at(node: VectorSelector | SubqueryExpr) -> None:
    if node.at is not None:
        raise QueryInvalid("expected no @: what was so at a fixed time is no evidence of now; use offset")


def _bounded(what: str, found: timedelta | None) -> None:
    if found is not None and not timedelta(0) <= found <= FURTHEST:
        most, seconds = display_duration(FURTHEST), found.total_seconds()
        raise QueryInvalid(f"expected {what} between 0s and {most}, found {seconds:g} s; change it")


def _forced(selector: VectorSelector, namespace: str) -> Expr:
    """The selector with the matcher, made from text: the parser's objects do not take changes."""
    matchers = [m for m in selector.matchers.matchers if m.name != "namespace"]
    inner = ",".join([*map(_matcher, matchers), f'namespace="{namespace}"'])
    offset = f" offset {display_duration(selector.offset)}" if selector.offset else ""
    return _parsed(f"{selector.name or ''}{{{inner}}}{offset}")


_OPERATORS = ((MatchOp.Equal, "="), (MatchOp.NotEqual, "!="), (MatchOp.Re, "=~"), (MatchOp.NotRe, "!~"))


def _matcher(matcher: Matcher) -> str:
    """As PromQL; its strings are escaped as JSON's are."""
    sign = next(sign for op, sign in _OPERATORS if op == matcher.op)
    return f"{matcher.name}{sign}{json.dumps(matcher.value, ensure_ascii=False)}"


def _same(wanted: list[Expr], found: list[Expr], namespace: str) -> None:
    """What will be sent reads as what was checked, and every selector of it holds the matcher, once."""
    same = list(map(_face, wanted)) == list(map(_face, found))
    selectors = [node for node in found if isinstance(node, VectorSelector)]
    forced = all([m.value for m in s.matchers.matchers if m.name == "namespace"] == [namespace] for s in selectors)
    if not same or not forced or any(s.matchers.or_matchers for s in selectors):
        raise QueryInvalid("expected a query that can be written back as it was read; use plain label names and values")


def _face(node: Expr) -> tuple[object, ...]:
    """What must not change when a node is written and read again; of selectors all but the namespace."""
    times = tuple(getattr(node, name, None) for name in ("range", "step", "offset"))
    if isinstance(node, VectorSelector):
        return (
            "selector",
            node.name,
            sorted(_matcher(m) for m in node.matchers.matchers if m.name != "namespace"),
            times,
        )
    return (type(node).__name__, str(getattr(node, "op", "")), getattr(node, "val", None), times)


def _list(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))
