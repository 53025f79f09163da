"""Every recording rule that ships, judged by promtool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from manifests.recording import everywhere
from precision_operator.api.signal_records import SIGNALS
from tests.support.promtool import promtool
from tests.support.signals import ROWS, reported, scraped

Json = dict[str, Any]
Samples = dict[str, float]
"""Label set → value."""
RULES = Path(__file__).parents[2] / "manifests" / "monitoring" / "alerts.yaml"
RECORDS: list[Json] = [
    rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"] if "record" in rule
]
PODS = "namespace_workload_pod:genesis_precision_info:relabel"
OWNER = "namespace_workload_pod:kube_pod_owner:relabel"

WINDOW_SECONDS = 300.0


def series_of(pod: str, mode: str, namespace: str = "team", **values: str) -> dict[str, str]:
    labels = f'namespace="{namespace}",pod="{pod}"'
    info = {f'genesis_precision_info{{{labels},mode="{mode}",generation="3"}}': "1x20"}
    return info | {f"genesis_{name}{{{labels}}}": text for name, text in values.items()}


def signals(pod: str, mode: str, namespace: str = "team", *, good: bool) -> dict[str, str]:
    """What a pod reports in each minute."""
    target = f'namespace="{namespace}",pod="{pod}"'
    whole = scraped(target, reported(good=good), interval_seconds=60.0, scrapes=20)
    return series_of(pod, mode, namespace) | whole


FLEET = {
    **signals("vit-6d4cf56db6-x2x9q", "fp16", good=True),
    **signals("vit-6d4cf56db6-z7k2p", "fp16", good=False),
    **signals("bert-0", "fp32", good=True),
    **signals("bert-0", "fp16", "other", good=False),
}
WORST = {signal: "min" if record.default.lower_is_worse else "max" for signal, record in SIGNALS.items()}
VIT, BERT = 'namespace="team",workload="vit"', 'namespace="team",workload="bert"'
OTHER = 'namespace="other",workload="bert"'
LEVELS: dict[str, Samples] = {
    record: samples
    for signal, (good, bad) in ((signal, row.over(WINDOW_SECONDS)) for signal, row in ROWS.items())
    for record, samples in {
        f"namespace_workload_pod:genesis_{signal.name.lower()}:window5m": {
            f'{VIT},pod="vit-6d4cf56db6-x2x9q",mode="fp16"': good,
            f'{VIT},pod="vit-6d4cf56db6-z7k2p",mode="fp16"': bad,
            f'{BERT},pod="bert-0",mode="fp32"': good,
            f'{OTHER},pod="bert-0",mode="fp16"': bad,
        },
        f"namespace_workload:genesis_{signal.name.lower()}:{WORST[signal]}": {VIT: bad, BERT: good, OTHER: bad},
        f"namespace_mode:genesis_{signal.name.lower()}:avg": {
            'namespace="team",mode="fp16"': (good + bad) / 2,
            'namespace="team",mode="fp32"': good,
            'namespace="other",mode="fp16"': bad,
        },
    }.items()
}
COUNTS: dict[str, Samples] = {
    "namespace_mode:genesis_workloads:count": {
        'namespace="team",mode="fp16"': 1,
        'namespace="team",mode="fp32"': 1,
        'namespace="other",mode="fp16"': 1,
    }
}
NAMES = {
    "vit-6d4cf56db6-x2x9q": "vit",
    "vit-large-7c9d8b5f4-x2x9q": "vit-large",
    "bert-0": "bert",
    "bert-12": "bert",
    "tune-x2x9q": "tune",
    "tune-3-x2x9q": "tune",
    "probe": "probe",
    "fp16-probe": "fp16-probe",
}

SCRAPED = 'instance="{0}",namespace="precision-system",exported_namespace="team",policy="fleet"'
BY_LEADER = {
    "precision_policy_info": ('phase="Held",precision="fp32"', 'phase="Held"', 1),
    "precision_policy_condition": ('type="Stuck"', 'type="Stuck"', -1),
    "precision_policy_timestamp_seconds": ('of="phase"', 'of="phase"', 1234),
    "precision_policy_suspended": ("", "", 1),
    "precision_policy_workloads": ('state="moved"', 'state="moved"', 6),
}


def expect(directory: Path, series: dict[str, str], expected: dict[str, Samples], *, at: str = "10m") -> None:
    """Assert what is recorded: by name, or by an expression over names, and nothing else."""
    tests = [
        {
            "expr": record,
            "eval_time": at,
            "exp_samples": [
                {"labels": f"{'' if '(' in record else record}{{{labels}}}", "value": value}
                for labels, value in samples.items()
            ],
        }
        for record, samples in expected.items()
    ]
    test = {
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "promql_expr_test": tests,
    }
    (directory / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": RECORDS}]}))
    content = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
    (directory / "test.yaml").write_text(yaml.safe_dump(content, width=10**6))
    done = promtool("test", "rules", directory / "test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_signal_is_recorded_by_pod_by_workload_where_the_worst_counts_and_by_cohort(tmp_path: Path) -> None:
    expect(tmp_path, FLEET, LEVELS | COUNTS)


def test_a_query_of_one_namespace_joins_by_namespace_where_it_is_recorded_for_all() -> None:
    of_one = 'max by (pod) (a{namespace="$namespace"} and on (pod) b{namespace="$namespace",mode="fp16"})'
    assert everywhere(of_one) == 'max by (namespace, pod) (a and on (namespace, pod) b{mode="fp16"})'


def test_nothing_is_recorded_of_what_is_not_reported(tmp_path: Path) -> None:
    expect(tmp_path, series_of("bert-0", "fp16", training_loss="2x20"), {record: {} for record in LEVELS})


def test_a_loss_that_is_no_number_is_in_no_mean_and_is_nobodys_worst(tmp_path: Path) -> None:
    nan = series_of("bert-1", "fp16", training_loss="NaN " * 20, fp32_baseline_loss="2x20")
    fine = series_of("bert-0", "fp16", training_loss="3x20", fp32_baseline_loss="2x20")
    expected: dict[str, Samples] = {
        "namespace_workload:genesis_divergence:max": {BERT: 0.5},
        "namespace_mode:genesis_divergence:avg": {'namespace="team",mode="fp16"': 0.5},
    }
    expect(tmp_path, {**nan, **fine}, expected)


def test_a_workload_is_known_by_the_names_that_controllers_give_to_pods(tmp_path: Path) -> None:
    series = {key: text for pod in NAMES for key, text in series_of(pod, "fp16").items()}
    samples: Samples = {
        f'namespace="team",workload="{workload}",pod="{pod}",mode="fp16"': 1 for pod, workload in NAMES.items()
    }
    expect(tmp_path, series, {PODS: samples})


def test_an_owner_that_is_recorded_counts_more_than_a_name(tmp_path: Path) -> None:
    owner = {f'{OWNER}{{namespace="team",pod="vit-0",workload="owner",workload_type="job"}}': "1x20"}
    expected: dict[str, Samples] = {PODS: {'namespace="team",workload="owner",pod="vit-0",mode="fp16"': 1}}
    expect(tmp_path, series_of("vit-0", "fp16") | owner, expected)


def test_a_pod_that_is_scraped_twice_while_it_changes_its_mode_is_recorded_once(tmp_path: Path) -> None:
    series = series_of("vit-0", "fp16") | series_of("vit-0", "fp32")
    # Which of the two modes it is recorded in, Prometheus chooses.
    expected: dict[str, Samples] = {
        "sum by (namespace) (namespace_mode:genesis_workloads:count)": {'namespace="team"': 1}
    }
    expect(tmp_path, series, expected)


@pytest.mark.parametrize("name", BY_LEADER)
def test_of_a_policy_the_leaders_word_counts_under_the_policys_namespace(name: str, tmp_path: Path) -> None:
    labels, kept, value = BY_LEADER[name]
    series = {
        f"{name}{{{SCRAPED.format('leader')},{labels}}}": f"{value}x20",
        f"{name}{{{SCRAPED.format('before')},{labels}}}": f"{value + 7}x20",
        'precision_operator_leader{instance="leader"}': "1x20",
        'precision_operator_leader{instance="before"}': "0x20",
    }
    expected: dict[str, Samples] = {
        f"namespace_policy:{name}:leader": {f'namespace="team",policy="fleet",{kept}': value}
    }
    expect(tmp_path, series, expected)


def test_a_prometheus_that_gives_targets_no_namespace_leaves_the_policys_in_its_place(tmp_path: Path) -> None:
    series = {
        'precision_policy_workloads{instance="a",namespace="team",policy="fleet",state="held"}': "2x20",
        'precision_operator_leader{instance="a"}': "1x20",
    }
    expected: dict[str, Samples] = {
        "namespace_policy:precision_policy_workloads:leader": {'namespace="team",policy="fleet",state="held"': 2}
    }
    expect(tmp_path, series, expected)


def test_each_record_is_tested() -> None:
    tested = {*LEVELS, *COUNTS, PODS, *(f"namespace_policy:{name}:leader" for name in BY_LEADER)}
    assert tested == {rule["record"] for rule in RECORDS}
