"""The last half hour of a policy's signals, out of Prometheus, for the policies that a page shows."""

import argparse
import time

from precision_operator.api.text import bounded
from precision_operator.cli.dashboard.charts import Chart, failed, of_series
from precision_operator.cli.live import catalogue, prometheus
from precision_operator.cli.session import Target
from precision_operator.errors import OperatorError, SignalError

SPAN_SECONDS = 1800
STEP_SECONDS = 15
SOURCE = "Prometheus"


class Trends:
    """Asks once in ``STEP_SECONDS`` a policy, however many pages show it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._kept: dict[str, tuple[float, list[Chart]]] = {}

    async def of(self, target: Target) -> list[Chart]:
        """A chart a signal; none where no Prometheus was named."""
        if not self._arguments.prometheus:
            return []
        asked_at, known = self._kept.get(target.where, (-STEP_SECONDS, []))
        if time.monotonic() - asked_at < STEP_SECONDS:
            return known
        found = await self._ask(target)
        self._kept[target.where] = (time.monotonic(), found)
        return found

    async def _ask(self, target: Target) -> list[Chart]:
        from precision_operator.replay.history import queries_for
        from precision_operator.signals.queries import ACK, STEPS

        arguments = self._arguments
        end = time.time() // STEP_SECONDS * STEP_SECONDS
        charts: list[Chart] = []
        try:
            queries = queries_for(target.policy, catalogue(arguments.queries))
            with prometheus(arguments) as source:
                for name in sorted(queries.keys() - {ACK, STEPS}):
                    try:
                        series = await source.history(queries[name], end - SPAN_SECONDS, end, STEP_SECONDS)
                    except SignalError as error:
                        charts.append(failed(name, bounded(str(error)), source=SOURCE))
                        continue
                    charts.append(of_series(name, series, target.policy, source=SOURCE))
        except OperatorError as error:
            charts.append(failed("signals", bounded(str(error)), source=SOURCE))
        except KeyError as error:
            why = f"the catalogue has no query {error}: name its file with --queries"
            charts.append(failed("signals", why, source=SOURCE))
        return charts
