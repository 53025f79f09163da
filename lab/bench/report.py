"""From raw rounds to figures, and the figures beside their budgets."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from rich.table import Table

from lab.bench.api import Json
from lab.bench.fleet import INTERVAL_SECONDS
from lab.progress import console
from precision_operator.api.state import Phase


def summary(raw: Json) -> Json:
    """Medians, as build/bench/operator.json has them."""
    figures = _of_rollbacks(raw["rollbacks"]) if "rollbacks" in raw else {}
    if "with_pods" in raw:
        hot = raw["with_pods"]
        figures["with_pods"] = {
            "n": hot["n"],
            "pods": hot["pods"],
            "decided_to_last_patch_seconds": round(
                median(r["decided_to_last_patch_seconds"] for r in hot["rounds"]), 3
            ),
            "api_writes": median(r["api_writes"] for r in hot["rounds"]),
        }
    return {**figures, **{key: raw[key] for key in ("large", "many", "pod_creations_per_second") if key in raw}}


def _of_rollbacks(part: Json) -> Json:
    rounds, steady = part["rounds"], part["steady"]
    bare = {n: median(r["bare_seconds"][n] for r in rounds) for n in rounds[0]["bare_seconds"]}
    best = min(bare, key=lambda n: bare[n])
    return {
        "n": part["n"],
        "evaluation_interval_seconds": INTERVAL_SECONDS,
        "bare_seconds": round(bare[best], 3),
        "bare_inflight": int(best),
        "unfenced_seconds": round(min(median(r["unfenced_seconds"][n] for r in rounds) for n in bare), 3),
        "breach_to_decided_seconds": round(median(r["breach_to_decided_seconds"] for r in rounds), 3),
        "decided_to_last_patch_seconds": round(median(r["decided_to_last_patch_seconds"] for r in rounds), 3),
        "api_writes": median(r["api_writes"] for r in rounds),
        "prometheus_queries_per_interval": round(steady["queries_per_interval"], 2),
        "metrics": steady["metrics"],
        "idle_cores": round(steady["cores"], 4),
        "rss_mib": round(steady["rss_mib"], 1),
        "steady_writes": steady["writes"],
        "takeover_seconds": [round(seconds, 2) for seconds in part["takeover_seconds"]],
    }


@dataclass(frozen=True)
class Budget:
    """What a figure may be, and what it is."""

    what: str
    limit: float
    found: float
    unit: str = ""
    exactly: bool = False

    @property
    def kept(self) -> bool:
        """Whether the figure is within the budget; one that is not a number is not."""
        return self.found == self.limit if self.exactly else self.found <= self.limit


def budgets(figures: Json) -> list[Budget]:
    """The budgets of the design, over these figures."""
    found = _of_a_rollback(figures) if "n" in figures else []
    if "with_pods" in figures:
        hot = figures["with_pods"]
        found.append(Budget("two pods a workload: API writes", hot["pods"] + 10, hot["api_writes"]))
    return [*found, *_of_scale(figures)]


def _of_a_rollback(figures: Json) -> list[Budget]:
    n, interval, takeovers = figures["n"], figures["evaluation_interval_seconds"], figures["takeover_seconds"]
    patched, bare = figures["decided_to_last_patch_seconds"], figures["bare_seconds"]
    return [
        Budget("breach visible → decided", interval + 0.5, figures["breach_to_decided_seconds"], "s"),
        Budget(f"decided → last of {n} requested, against bare {bare:g} s", 1.2, round(patched / bare, 2), "×"),
        Budget("API writes of the rollback", n + 10, figures["api_writes"]),
        Budget("queries a metric an interval", 1.0, round(_queries_a_metric(figures), 2)),
        Budget("at rest: cores", 0.01, figures["idle_cores"]),
        Budget("at rest: resident memory", 150.0, figures["rss_mib"], "MiB"),
        Budget("at rest: writes", 0, figures["steady_writes"], exactly=True),
        *([Budget(f"leader killed, slowest of {len(takeovers)}", 8.0, max(takeovers), "s")] if takeovers else []),
    ]


def _of_scale(figures: Json) -> list[Budget]:
    found: list[Budget] = []
    if "large" in figures:
        one = figures["large"]
        what = f"{one['workloads']} workloads in one policy"
        found.append(
            Budget(f"{what}: not measured in mid-rollback", 0, one["phase"] != Phase.ROLLING_BACK, exactly=True)
        )
        found.append(Budget(f"{what}: object", 1024 * 1024, one["object_bytes"], "bytes"))
        found.append(Budget(f"{what}: a decision", 1.0, one["decide_seconds"], "s CPU"))
    if "many" in figures:
        all_of_it = figures["many"]
        what = f"{all_of_it['workloads']} workloads, {all_of_it['policies']} policies"
        found.append(Budget(f"{what}: cores", 0.05, all_of_it["idle_cores"]))
        found.append(Budget(f"{what}: writes", 0, all_of_it["steady_writes"], exactly=True))
        found.append(Budget(f"{what}: memory", 400.0, all_of_it["rss_mib"], "MiB"))
        limit = all_of_it["interval_seconds"] + 1.0
        found.append(Budget(f"{what}: breach → decided", limit, all_of_it["breach_to_decided_seconds"], "s"))
    return found


def _queries_a_metric(figures: Json) -> float:
    return float(figures["prometheus_queries_per_interval"] / figures["metrics"])


def show(figures: Json) -> bool:
    """Print the figures beside the budgets; whether all are kept."""
    table = Table("figure", "found", "budget", "", title="operator at scale")
    found = budgets(figures)
    for budget in found:
        mark = "[green]kept[/green]" if budget.kept else "[red]missed[/red]"
        sign = "" if budget.exactly else "≤ "
        table.add_row(budget.what, f"{budget.found:g} {budget.unit}", f"{sign}{budget.limit:g} {budget.unit}", mark)
    console.print(table)
    return all(budget.kept for budget in found)
