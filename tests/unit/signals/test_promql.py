"""PromQL of a policy's own: confined to its namespace in every selector, and unable to make data of its absence."""

from contextlib import suppress

import promql_parser
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from precision_operator.errors import QueryInvalid
from precision_operator.signals import promql
from precision_operator.signals.promql import FUNCTIONS, confine, written


def selectors(query: str) -> list[promql_parser.VectorSelector]:
    """Every vector selector of a query, found by the parser's own walk."""
    found: list[promql_parser.VectorSelector] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(promql_parser.parse(query), visit)
    return found


def namespaces(selector: promql_parser.VectorSelector) -> list[tuple[str, str]]:
    return [(str(m.op), m.value) for m in selector.matchers.matchers if m.name == "namespace"]


@pytest.mark.parametrize(
    ("query", "confined"),
    [
        ("x", 'x{namespace="team"}'),
        ('x{namespace="team",a!="b"}', 'x{a!="b",namespace="team"}'),
        ("rate(x[5m] offset 1h)", 'rate(x{namespace="team"}[5m] offset 1h)'),
        ("max_over_time(rate(x[1m])[10m:30s])", 'max_over_time(rate(x{namespace="team"}[1m])[10m:30s])'),
        ("x - (y - z)", 'x{namespace="team"} - (y{namespace="team"} - z{namespace="team"})'),
        ("quantile(0.5, x) > 2", 'quantile(0.5, x{namespace="team"}) > 2'),
        ('{__name__="x"}', '{__name__="x",namespace="team"}'),
        ('x{a="say \\"b\\" \\\\ \\n"}', 'x{a="say \\"b\\" \\\\ \\n",namespace="team"}'),
        ('x{a=~"\\\\d+|é"}', 'x{a=~"\\\\d+|é",namespace="team"}'),
        ('x{a=~"(?:b|c)-[0-9]{3}=~"}', 'x{a=~"(?:b|c)-[0-9]{3}=~",namespace="team"}'),
    ],
)
def test_every_selector_gets_the_namespace_and_the_rest_stays(query: str, confined: str) -> None:
    assert confine(query, "team") == confined


JOINTS = ("/", "^", "%", "*", "+", "-", "<", "==", "!=", ">=", "> bool ", " and ", " UNLESS ", " or ", " atan2 ")
_CLASSES = r'a=~"\\w\\w"'
HOSTILE = {
    "another namespace": ('x{namespace="victim"}', "no other namespace"),
    "another namespace beside the own": ('x{namespace="team",namespace="victim"}', "no other namespace"),
    "all namespaces": ('x{namespace=~".*"}', "no other namespace"),
    "all but the own": ('x{namespace!="team"}', "no other namespace"),
    "another namespace in a subquery": ('max_over_time(x{namespace="victim"}[1h:1m])', "no other namespace"),
    "another namespace in a range with an offset": ('rate(x{namespace="victim"}[5m] offset 5m)', "no other namespace"),
    "another namespace on one side": ('x / on (pod) y{namespace="victim"}', "no other namespace"),
    "matchers joined by or": ('x{a="b" or namespace="victim"}', "joined by commas"),
    "every metric": ('{__name__=~".+"}', "name its metric"),
    "no metric": ('{pod=~".+"}', "name its metric"),
    "out of the braces": ('x{a="b"} or vector(0) #"}', "`or`"),
    "a value for what is missing": ("x or y * 0", "`or`"),
    "a filled gap": ("x + fill(0) y", "fill"),
    "absence as a value": ("absent(x)", "function absent"),
    "absence over time": ("absent_over_time(x[5m])", "function absent_over_time"),
    "a value from nothing": ("vector(1)", "function vector"),
    "nothing as a number": ("x > scalar(y)", "function scalar"),
    "another pod's name": ('label_replace(x, "pod", "other", "pod", ".*")', "function label_replace"),
    "a name made of a value": ('count_values("pod", x)', "aggregation count_values"),
    "a choice that changes": ("topk(1, x)", "aggregation topk"),
    "only a number": ("1 + 1", "found a scalar"),
    "no metric at all": ("time() > bool 1", "found a scalar"),
    "a range": ("x[5m]", "range vector"),
    "a text": ('"x"', "no text"),
    "a fixed time": ("x @ 1700000000", "no @"),
    "the end of the query": ("x @ end()", "no @"),
    "the future": ("x offset -5m", "offset between 0s and 1d"),
    "a range of a year": ("rate(x[1y])", "range between 0s and 1d"),
    "a query of death": ("max_over_time(x[1d:1s])", "at most 1440 steps"),
    "steps of a millisecond": ("max_over_time(x[1m:1ms])", "at most 1440 steps"),
    "steps of the server's choice": ("max_over_time(x[1m:])", "at most 1440 steps"),
    "too long": ("x" + " " * 5000, "4096 characters"),
    "too many parts": (" + ".join(["x"] * 40), "64 parts"),
    "no query": ("", "does not parse"),
    "two queries": ("x; y", "does not parse"),
    "unbalanced": ("sum(x", "does not parse"),
    "deep": ("(" * 200 + "x" + ")" * 200, "64 parts"),
    "deeper": ("-" * 4000 + "x", "256 brackets and signs"),
    **{
        f"joined by {sign}": (sign.join(["x"] * (4000 // (len(sign) + 1))), "256 brackets and signs") for sign in JOINTS
    },
    "a class repeated": (r'x{a=~"\\w{400}"}', "simpler regular expressions"),
    "a class repeated, escaped": (r'x{a!~"\\w\x7b400}"}', "simpler regular expressions"),
    "a regular expression without an end": ('x{a=~"' + "." * 4000 + '"}', "simpler regular expressions"),
    "classes in many matchers": (f"x{{{','.join([_CLASSES] * 40)}}}", "simpler regular expressions"),
    "classes in joined matchers": (f"x{{{' or '.join([_CLASSES] * 40)}}}", "simpler regular expressions"),
    "repetitions of repetitions": ('x{a=~"((b{9}){,9}){ 9,9 }{9}"}', "simpler regular expressions"),
    "every case of every character": ('x{a=~"(?i:[a-\U0001f4a9])"}', "no flags"),
    "a text that is no regular expression": ('x{a=~"' + "(" * 100 + '"}', "does not parse"),
    "a NUL": ("x\0", "does not parse"),
    "homoglyphs": ("ѕum(x)", "does not parse"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_allowed_is_refused_with_the_reason(name: str) -> None:
    query, reason = HOSTILE[name]
    with pytest.raises(QueryInvalid, match=reason) as refused:
        confine(query, "team")
    assert len(str(refused.value)) < 600


def test_variables_are_filled_in_before_the_query_is_confined() -> None:
    query = 'sum by (pod) (increase(x{namespace="$namespace"}[$window])) >= $minSteps'
    assert written(query, "team", 90.0, 20) == 'sum by (pod) (increase(x{namespace="team"}[1m30s])) >= 20'


@pytest.mark.parametrize("query", ["abs(rate(x[5m]))", "absent(a_series_of_this_test)"])
def test_what_became_of_a_query_is_worked_out_once(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several passes a second ask for it on the event loop."""
    asked: list[str] = []

    def counted(text: str, namespace: str) -> str:
        asked.append(text)
        return confine(text, namespace)

    monkeypatch.setattr(promql, "confine", counted)
    for _ in range(3):
        with suppress(QueryInvalid):
            written(query, "team-once", 90.0, 20)
    assert asked == [query]


LABELS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)


def quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


@st.composite
def vectors(draw: st.DrawFn, depth: int = 3) -> str:
    """Expressions that are vectors, of everything that is allowed."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        name = draw(st.sampled_from(["x", "genesis_training_loss", "y:rate5m"]))
        matchers = [
            f"{draw(st.sampled_from(['a', 'pod', 'job']))}{draw(st.sampled_from(['=', '!=']))}{quoted(draw(LABELS))}"
            for _ in range(draw(st.integers(0, 2)))
        ]
        if draw(st.booleans()):
            matchers.append('namespace="team"')
        return f"{name}{{{','.join(matchers)}}}" + draw(st.sampled_from(["", " offset 5m", " offset 1h30m"]))
    inner = vectors(depth=depth - 1)
    kind = draw(st.sampled_from(["aggregate", "binary", "call", "range", "subquery", "unary"]))
    if kind == "aggregate":
        return f"{draw(st.sampled_from(['sum', 'max', 'avg']))} by (pod) ({draw(inner)})"
    if kind == "binary":
        operator = draw(
            st.sampled_from(["+", "-", "/", "^", "> bool", "and on (pod)", "unless", "* on (pod) group_left ()"])
        )
        return f"({draw(inner)}) {operator} ({draw(inner)})"
    if kind == "call":
        return f"{draw(st.sampled_from(sorted(FUNCTIONS & {'abs', 'sqrt', 'ceil'})))}({draw(inner)})"
    if kind == "range":
        return f"rate(x{{a={quoted(draw(LABELS))}}}[5m])"
    if kind == "subquery":
        return f"max_over_time(({draw(inner)})[10m:30s] offset 1m)"
    return f"-({draw(inner)})"


@given(vectors())
def test_in_what_is_sent_every_selector_has_exactly_the_forced_namespace(query: str) -> None:
    try:
        confined = confine(query, "team")
    except QueryInvalid as refused:
        # Labels that the parser does not take, or does not give back; expressions that have grown too large.
        event(str(refused)[:30])
        return
    before = selectors(query)
    after = selectors(confined)
    assert [s.name for s in after] == [s.name for s in before]
    assert [namespaces(s) for s in after] == [[("MatchOp.Equal", "team")]] * len(after)
    assert confine(confined, "team") == confined
