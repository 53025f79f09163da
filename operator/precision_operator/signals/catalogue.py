"""The catalogue: the queries that the admin allows policies beside the built-in ones, and why a plan cannot be asked."""

from collections.abc import Mapping

from precision_operator.errors import QueryInvalid
from precision_operator.reasons import Cause, Reason
from precision_operator.signals.plan import EvaluationPlan
from precision_operator.signals.promql import written
from precision_operator.signals.queries import BUILT_IN, check


class Catalogue:
    """The admin's queries by name, each checked once."""

    def __init__(self, queries: Mapping[str, str], *, allow_raw: bool) -> None:
        """``allow_raw``: policies may bring PromQL of their own."""
        self.queries = queries
        self._allow_raw = allow_raw
        self._refused: dict[str, str] = {}
        """Name of a query → why it cannot be asked."""
        for name, template in queries.items():
            try:
                check(template)
            except QueryInvalid as error:
                self._refused[name] = str(error)

    def problem(self, plan: EvaluationPlan) -> Cause | None:
        """Why the plan's queries cannot be asked as written; None where they can."""
        for signal, name in plan.queries:
            if not name and signal not in BUILT_IN:
                return Cause(
                    Reason.UNKNOWN_QUERY,
                    f"signal {signal!r} has no built-in query; {known_names('built-in queries', BUILT_IN)}; "
                    "name a query of the operator's catalogue for it",
                )
            if name and name not in self.queries and name not in BUILT_IN:
                return Cause(
                    Reason.UNKNOWN_QUERY,
                    f"criteria {signal!r}: no query is named {name!r}; {known_names('queries', self.queries)}; "
                    "name one of them, leave the query out to use the built-in one, or have the admin add it to the "
                    "operator's settings under queries",
                )
            if name in self._refused:
                return Cause(
                    Reason.QUERY_INVALID,
                    f"query {name!r} of the operator's catalogue: {self._refused[name]}; "
                    "have the admin correct it in the operator's settings under queries",
                )
        return self._raw_problem(plan)

    def _raw_problem(self, plan: EvaluationPlan) -> Cause | None:
        for signal, query in plan.raw:
            if not self._allow_raw:
                return Cause(
                    Reason.RAW_QUERY_NOT_ALLOWED,
                    f"criteria {signal!r} brings its own PromQL, and this operator's admin does not allow that; name a "
                    "query of the catalogue instead, or have the admin set allowRawQueries",
                )
            try:
                written(query, plan.namespace, plan.window_seconds, plan.min_steps)
            except QueryInvalid as error:
                return Cause(Reason.QUERY_INVALID, f"criteria {signal!r}, promql: {error}")
        return None


def known_names(what: str, names: Mapping[str, object]) -> str:
    """For a message: which names there are."""
    return f"known {what}: {', '.join(sorted(names))}" if names else f"there are no {what}"
