"""The query catalogue: what we ask parses, and nothing can be slipped in."""

import promql_parser
import pytest

from precision_operator.errors import QueryInvalid
from precision_operator.signals.queries import BUILT_IN, check, render


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_built_in_query_is_fit_for_the_catalogue(name: str) -> None:
    check(BUILT_IN[name])
    query = render(BUILT_IN[name], "team-a", 10, 5)
    assert "$" not in query
    promql_parser.parse(query)


@pytest.mark.parametrize(("seconds", "written"), [(10, "10s"), (0.5, "500ms"), (90.0, "90s"), (1.5, "1500ms")])
def test_windows_are_written_as_prometheus_reads_them(seconds: float, written: str) -> None:
    assert render("x[$window]", "a", seconds, 1) == f"x[{written}]"


def test_other_dollars_stay_as_they_are() -> None:
    assert render('x{a=~"b$",n="$namespace"} > $minSteps', "ns", 1, 7) == 'x{a=~"b$",n="ns"} > 7'
    assert render('label_replace(x, "a", "$1", "b", "(.*)")', "ns", 1, 7).count("$1") == 1


def test_fewer_than_one_step_counts_as_one() -> None:
    assert render("$minSteps", "ns", 1, 0) == "1"


@pytest.mark.parametrize("namespace", ["", "A", 'x"} or vector(0) #', "a\n", "a" * 64, "-a", "a.b", "é"])
def test_a_namespace_that_is_none_is_refused(namespace: str) -> None:
    with pytest.raises(QueryInvalid, match="expected a namespace"):
        render(BUILT_IN["ack"], namespace, 1, 1)


def test_an_empty_window_is_refused() -> None:
    with pytest.raises(QueryInvalid, match="window"):
        render(BUILT_IN["steps"], "a", 0, 1)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ('sum(rate(x{namespace="$namespace"}[1m])', "does not parse.*parenthesis"),
        ("", "expected a matcher namespace"),
        ("sum by (pod) (x)", "expected a matcher namespace"),
        ('x{namespace="$namespace"}[$window]', "found a range vector"),
        ('scalar(x{namespace="$namespace"})', "found a scalar"),
        ('"$namespace"', "found a string"),
        ('x{namespace="$namespace"}; y', "does not parse"),
        ('x{namespace="$namespace"}[5m:1m]', "found a range of a subquery"),
        ('x{namespace="$namespace"}' + " " * 20_000, "characters"),
    ],
)
def test_a_query_that_cannot_be_asked_is_refused_with_what_was_expected(query: str, message: str) -> None:
    with pytest.raises(QueryInvalid, match=message):
        check(query)
