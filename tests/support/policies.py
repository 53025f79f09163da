"""Specs of policies that the API server takes, and specs that it refuses."""

from __future__ import annotations

from typing import Any

from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.signals import Signal

Json = dict[str, Any]
SELECTOR: Json = {"matchLabels": {"app": "trainer"}}


def policy(name: str = "p", /, **spec: object) -> Json:
    """A policy that selects the trainers."""
    return {
        "apiVersion": "precision.genesis.ai/v1alpha1",
        "kind": "PrecisionPolicy",
        "metadata": {"name": name},
        "spec": {"selector": SELECTOR, **spec},
    }


def steps(*items: Json) -> Json:
    """These steps, as a spec."""
    return {"strategy": {"steps": list(items)}}


def weights(*values: object) -> Json:
    """The same from weights alone."""
    return steps(*({"setWeight": value} for value in values))


def selecting(*expressions: Json, **labels: str) -> Json:
    """A selector, as a spec."""
    return {"selector": {"matchExpressions": list(expressions), "matchLabels": labels}}


GOOD: dict[str, Json] = {
    "only a selector": {},
    "bf16 with its fallback fp32": {"target": "bf16"},
    "fp16 with fallback bf16": {"target": "fp16", "fallback": "bf16"},
    "fp32, which takes a fleet off reduced precision": {"target": "fp32"},
    "a rollout that stops at 50 %": weights(10, 50),
    "a single step": weights(100),
    "pauses that wait for a person": steps(
        {"setWeight": 1}, {"pause": {}}, {"setWeight": 2}, {"pause": {"duration": "1h30m"}}
    ),
    "fifty steps": weights(*range(1, 51)),
    "the fastest evaluation": {
        "evaluation": {"interval": "500ms", "window": "2s", "maxSampleAge": "1s", "noDataLimit": "1s"}
    },
    "the slowest evaluation": {
        "evaluation": {"interval": "5m", "window": "1h", "maxSampleAge": "10m", "noDataLimit": "24h"}
    },
    "a window as long as the interval": {"evaluation": {"interval": "1m", "window": "60s"}},
    "durations of several parts": {"evaluation": {"window": "1m30s500ms"}},
    "no tolerance at all": {"evaluation": {"failureLimit": 0, "minSamples": 1, "minSteps": 0}},
    "rollback without data": {"evaluation": {"onNoData": "Rollback"}},
    "thresholds of its own": {
        "criteria": {"overflow": {"enter": 0.1, "leave": 0.05, "promoteBelow": 0.1, "severity": "P2"}}
    },
    "whole numbers as thresholds": {"criteria": {"failures": {"enter": 1, "leave": 0, "promoteBelow": 0}}},
    "a policy that only observes": {"enforcement": "Observe"},
    "nights of the week": {
        "schedule": {
            "timeZone": "America/Argentina/Buenos_Aires",
            "windows": [{"days": ["Monday", "Friday"], "start": "22:00", "end": "06:00"}, {"days": ["Sunday"]}],
        }
    },
    "every criterion off": {"criteria": {signal.value: {"enabled": False} for signal in Signal}},
    "PromQL of its own": {"criteria": {"overflow": {"promql": "max by (pod) (mine)"}, "memory": {"severity": "P2"}}},
    "mild divergence rolled back": {
        "criteria": {"divergence": {"warn": 0.1, "warnSeverity": "P2", "alertAfter": "0s"}}
    },
    "speed, where lower is worse": {"criteria": {"speed": {"enter": 1.0, "leave": 1.2, "query": "team-speed"}}},
    "a whole fleet needed for a fleet rollback": {
        "rollback": {"fleetShare": 1, "fleetMinimum": 100, "ackTimeout": "30m"}
    },
    "short deadlines": {"rollback": {"deadlines": {"P0": "1s", "P1": "24h", "P2": "1s"}}},
    "no mitigation": {
        "rollback": {"mitigation": {"overflow": {"window": "0s", "ladder": []}, "speed": {"window": "0s"}}}
    },
    "another answer to P1": {"rollback": {"strategies": {"P1": "Gradual", "P2": "Hold"}}},
    "a canary of labelled nodes": {
        "rollback": {
            "strategies": {"P2": "Canary"},
            "canary": {"by": "NodeLabel", "nodeLabel": "pool.example/fp16=off"},
        }
    },
    "a gradual rollback of one by one, at once": {
        "rollback": {"gradual": {"sustain": "0s", "batchShare": 0.01, "inFlight": "0s"}}
    },
    "a retry without conditions": {"reenable": {"prerequisites": [], "backoff": "0s", "backoffLimit": "0s"}},
    "a retry by steps of its own": {
        "reenable": {"steps": [{"setWeight": 5}, {"pause": {"duration": "72h"}}, {"setWeight": 100}]}
    },
    "a warning level above enter": {"criteria": {"overflow": {"enter": 0.06, "leave": 0.04, "warn": 0.5}}},
    "pods as units": {"unit": "Pod"},
    "another metric source": {"prometheusRef": {"name": "team-a"}},
    "all four operators": selecting(
        {"key": "app", "operator": "In", "values": ["a", ""]},
        {"key": "example.com/team", "operator": "NotIn", "values": ["x"]},
        {"key": "gpu", "operator": "Exists"},
        {"key": "debug", "operator": "DoesNotExist", "values": []},
    ),
    "label keys with a prefix": selecting(**{"training.example.com/team": "vision", "a": ""}),
    "suspended, keeping nothing when deleted": {"suspend": True, "deletionPolicy": "Release", "delivery": "NewOnly"},
}
"""What it takes."""

BAD: dict[str, tuple[Json, str]] = {
    # unit
    "an unknown unit": ({"unit": "Node"}, "spec.unit"),
    "pods as units on labelled nodes": (
        {"unit": "Pod", "strategy": {"canary": {"by": "NodeLabel"}}},
        "unit: Pod chooses pods by a hash",
    ),
    # selector
    "no selector": ({"selector": None}, "spec.selector"),
    "an empty selector": ({"selector": {}}, "an empty one would select every workload of the namespace: name a label"),
    "empty lists in the selector": (selecting(), "selector must have at least one requirement"),
    "In without values": (
        selecting({"key": "a", "operator": "In"}),
        "need at least one value: list the values, or use Exists",
    ),
    "NotIn with no values": (selecting({"key": "a", "operator": "NotIn", "values": []}), "need at least one value"),
    "Exists with values": (
        selecting({"key": "a", "operator": "Exists", "values": ["x"]}),
        "take no values: remove values, or use In",
    ),
    "DoesNotExist with values": (
        selecting({"key": "a", "operator": "DoesNotExist", "values": ["x"]}),
        "take no values",
    ),
    "an unknown operator": (
        selecting({"key": "a", "operator": "Gt", "values": ["1"]}),
        'supported values: "In", "NotIn", "Exists", "DoesNotExist"',
    ),
    "a label key that can be none": (selecting(**{"a b": "c"}), "every key of matchLabels must be a label key"),
    "a label key that is empty": (selecting(**{"": "c"}), "every key of matchLabels must be a label key"),
    "a label key that is too long": (selecting(**{"k" * 64: "c"}), "every key of matchLabels must be a label key"),
    "a label value that can be none": (selecting(app="a b"), "spec.selector.matchLabels.app"),
    "a label value that is too long": (selecting(app="v" * 64), "may not be more than 63"),
    "an expression's key that can be none": (
        selecting({"key": "a/b/c", "operator": "Exists"}),
        "matchExpressions[0].key",
    ),
    "seventeen labels": (selecting(**{f"k{i}": "v" for i in range(17)}), "must have at most 16"),
    "a namespace of its own": ({"namespace": "other"}, 'unknown field "spec.namespace"'),
    # modes
    "an unknown target": ({"target": "fp8"}, 'supported values: "fp32", "bf16", "fp16"'),
    "a target in capitals": ({"target": "FP16"}, "supported values"),
    "a fallback that is the target": (
        {"target": "bf16", "fallback": "bf16"},
        "found target bf16 with fallback bf16: use fallback: fp32",
    ),
    "a fallback less safe than the target": (
        {"target": "fp32", "fallback": "bf16"},
        "fallback must be safer than target",
    ),
    "fp16 as fallback": ({"fallback": "fp16"}, 'supported values: "fp32", "bf16"'),
    "an unknown delivery": ({"delivery": "Force"}, 'supported values: "Auto", "Hot", "Restart", "NewOnly"'),
    "an unknown deletion policy": ({"deletionPolicy": "Delete"}, 'supported values: "Hold", "Release"'),
    "suspend as a string": ({"suspend": "yes"}, "must be of type boolean"),
    # no address and no credential can be said
    "an address": ({"prometheusRef": {"address": "x"}}, 'unknown field "spec.prometheusRef.address"'),
    "an address as a name": ({"prometheusRef": {"name": "http://x:9090"}}, "spec.prometheusRef.name"),
    "PromQL as a query": ({"criteria": {"overflow": {"query": "sum(up)"}}}, "spec.criteria.overflow.query"),
    "an injection as a query": (
        {"criteria": {"overflow": {"query": '"} or vector(0) #'}}},
        "spec.criteria.overflow.query",
    ),
    "PromQL beside a query's name": ({"criteria": {"speed": {"query": "q", "promql": "x"}}}, "not both: name a query"),
    "PromQL of 4097 characters": ({"criteria": {"speed": {"promql": "x" * 4097}}}, "may not be more than 4096"),
    "a memory breach as P0": ({"criteria": {"memory": {"severity": "P0"}}}, "spec.criteria.memory.severity"),
    "a query of 64 characters": ({"criteria": {"speed": {"query": "q" * 64}}}, "may not be more than 63"),
    # steps
    "no steps": (steps(), "should have at least 1 items"),
    "a step that is both": (
        steps({"setWeight": 10, "pause": {}}),
        "exactly one of setWeight and pause: split it into two items",
    ),
    "a step that is neither": (steps({"setWeight": 10}, {}), "exactly one of setWeight and pause"),
    "a pause first": (steps({"pause": {"duration": "1m"}}, {"setWeight": 10}), "steps must begin with a setWeight"),
    "weights that fall": (weights(50, 25), "must rise strictly: order them and remove repeated ones"),
    "weights that fall, with pauses between": (
        steps({"setWeight": 50}, {"pause": {}}, {"setWeight": 25}),
        "must rise strictly",
    ),
    "a weight twice": (weights(10, 25, 25), "must rise strictly"),
    "a weight of 0": (weights(0, 50), "greater than or equal to 1"),
    "a weight of 101": (weights(101), "less than or equal to 100"),
    "a weight with a fraction": (weights(10.5), "must be of type integer"),
    "a weight as a string": (weights("10"), "must be of type integer"),
    "a weight in percent": (weights("10%"), "must be of type integer"),
    "a weight that overflows": (weights(2**63 - 1), "less than or equal to 100"),
    "51 steps": (weights(*range(1, 52)), "must have at most 50 items"),
    "a pause of 0s": (
        steps({"setWeight": 10}, {"pause": {"duration": "0s"}}),
        "found 0s: drop the step to wait for nothing",
    ),
    "a pause of a year": (steps({"setWeight": 10}, {"pause": {"duration": "8760h"}}), "at most 720h, found 8760h"),
    "a pause that is a duration": (steps({"setWeight": 10}, {"pause": "10m"}), "must be of type object"),
    # durations
    "an interval of 0s": ({"evaluation": {"interval": "0s"}}, "between 500ms and 5m, e.g. 15s; found 0s"),
    "an interval of 1ms": ({"evaluation": {"interval": "1ms"}}, "between 500ms and 5m"),
    "an interval of 6m": ({"evaluation": {"interval": "6m", "window": "1h"}}, "between 500ms and 5m"),
    "a negative interval": ({"evaluation": {"interval": "-1m"}}, "spec.evaluation.interval"),
    "an interval without a unit": ({"evaluation": {"interval": "15"}}, "spec.evaluation.interval"),
    "an interval as a number": ({"evaluation": {"interval": 15}}, "must be of type string"),
    "an interval in days": ({"evaluation": {"interval": "1d"}}, "spec.evaluation.interval"),
    "an interval in nanoseconds": ({"evaluation": {"interval": "1ns"}}, "spec.evaluation.interval"),
    "an interval with a fraction": ({"evaluation": {"interval": "1.5s"}}, "spec.evaluation.interval"),
    "an interval past any clock": ({"evaluation": {"interval": "9999999h"}}, "spec.evaluation.interval"),
    "an interval of many hours": ({"evaluation": {"interval": "999999h999999h"}}, "between 500ms and 5m"),
    "a window shorter than the interval": (
        {"evaluation": {"interval": "1m", "window": "30s"}},
        "found window 30s with interval 1m: raise window or lower interval",
    ),
    "a window of 1s": ({"evaluation": {"interval": "500ms", "window": "1s"}}, "between 2s and 1h"),
    "a sample age of an hour": ({"evaluation": {"maxSampleAge": "1h"}}, "between 1s and 10m"),
    "a limit without data of 2 days": ({"evaluation": {"noDataLimit": "48h"}}, "between 1s and 24h"),
    "an acknowledgement in 0s": ({"rollback": {"ackTimeout": "0s"}}, "between 1s and 30m"),
    "a deadline of 25h": (
        {"rollback": {"deadlines": {"P1": "25h"}}},
        "rollback.deadlines.P1 must be between 1s and 24h, e.g. 15m; found 25h",
    ),
    "a deadline for P3": ({"rollback": {"deadlines": {"P3": "1h"}}}, 'unknown field "spec.rollback.deadlines.P3"'),
    "a progress deadline of 5 s": ({"progressDeadlineSeconds": 5}, "greater than or equal to 10"),
    "a progress deadline of 2 days": ({"progressDeadlineSeconds": 172800}, "less than or equal to 86400"),
    # evidence
    "a negative failure limit": ({"evaluation": {"failureLimit": -1}}, "greater than or equal to 0"),
    "promotion on no sample": ({"evaluation": {"minSamples": 0}}, "greater than or equal to 1"),
    "promotion on no data": ({"evaluation": {"onNoData": "Promote"}}, 'supported values: "Hold", "Rollback"'),
    "null steps needed": ({"evaluation": {"minSteps": -1}}, "greater than or equal to 0"),
    # thresholds
    "leave at enter": (
        {"criteria": {"overflow": {"enter": 0.3, "leave": 0.3}}},
        "leave (default 0.2) must be below enter (default 0.3)",
    ),
    "leave above enter": ({"criteria": {"divergence": {"leave": 0.5}}}, "lower leave or raise enter"),
    "enter below the default of leave": (
        {"criteria": {"overflow": {"enter": 0.15}}},
        "leave (default 0.2) must be below enter",
    ),
    "promotion above enter": ({"criteria": {"failures": {"promoteBelow": 0.6}}}, "because a breach never promotes"),
    "speed the other way round": (
        {"criteria": {"speed": {"enter": 0.9, "leave": 0.8}}},
        "must be above enter (default 0.8), because lower is worse here",
    ),
    "speed with leave at enter": ({"criteria": {"speed": {"enter": 0.9}}}, "because lower is worse here"),
    "a speed of 0": ({"criteria": {"speed": {"enter": 0}}}, "greater than 0"),
    "a share above 1": ({"criteria": {"overflow": {"enter": 1.5}}}, "less than or equal to 1"),
    "a share in percent": ({"criteria": {"overflow": {"enter": 30}}}, "less than or equal to 1"),
    "a negative share": ({"criteria": {"failures": {"leave": -0.1}}}, "greater than or equal to 0"),
    "a divergence of 0": ({"criteria": {"divergence": {"promoteBelow": 0}}}, "greater than 0"),
    "a threshold as a string": ({"criteria": {"overflow": {"enter": "0.3"}}}, "must be of type number"),
    "a threshold that is not a number": ({"criteria": {"overflow": {"enter": "NaN"}}}, "must be of type number"),
    "a threshold for non-finite losses": (
        {"criteria": {"nonFinite": {"enter": 0.1}}},
        'unknown field "spec.criteria.nonFinite.enter"',
    ),
    "an unknown severity": ({"criteria": {"overflow": {"severity": "P3"}}}, 'supported values: "P0", "P1", "P2"'),
    "a criterion with a typo": ({"criteria": {"overflows": {}}}, 'unknown field "spec.criteria.overflows"'),
    "an answer that is none": (
        {"rollback": {"strategies": {"P2": "Later"}}},
        '"Emergency", "Gradual", "Canary", "Hold"',
    ),
    "a canary of everybody": ({"rollback": {"canary": {"share": 0.9}}}, "less than or equal to 0.5"),
    "a canary of a week": ({"rollback": {"canary": {"limit": "168h"}}}, "canary.limit must be between 1s and 24h"),
    "a canary compared past its limit": (
        {"rollback": {"canary": {"window": "4h", "limit": "2h"}}},
        "canary.window (default 2h) must not be longer than canary.limit",
    ),
    "a node label without a value's key": ({"rollback": {"canary": {"nodeLabel": "=disabled"}}}, "should match"),
    "a batch of nothing": ({"rollback": {"gradual": {"batchShare": 0}}}, "greater than 0"),
    "an in-flight wait of a week": ({"rollback": {"gradual": {"inFlight": "168h"}}}, "at most 24h"),
    "a rung that nobody knows": ({"rollback": {"mitigation": {"overflow": {"ladder": ["Pray"]}}}}, "Unsupported value"),
    "an investigation of a week": ({"rollback": {"mitigation": {"speed": {"window": "168h"}}}}, "at most 24h"),
    "a prerequisite that nobody knows": ({"reenable": {"prerequisites": ["coffee"]}}, "Unsupported value"),
    "a prerequisite twice": ({"reenable": {"prerequisites": ["fix", "fix"]}}, "Duplicate value"),
    "a dwell of two months": ({"reenable": {"dwell": "1440h"}}, "at most 720h"),
    "a success that nobody can reach": ({"reenable": {"success": 1}}, "should be less than 1"),
    "a back-off of a year": ({"reenable": {"backoff": "8760h"}}, "at most 24h"),
    "a retry that goes back by a step": (
        {"reenable": {"steps": [{"setWeight": 50}, {"setWeight": 25}]}},
        "must rise strictly",
    ),
    "a retry by steps that are none": (
        {"reenable": {"steps": [{"pause": {"duration": "8760h"}}, {"setWeight": 10, "pause": {}}]}},
        "steps must begin with a setWeight",
    ),
    "thresholds that contradict one another": (
        {
            "criteria": {
                "overflow": {"promoteBelow": 0.4},
                "divergence": {"promoteBelow": 0.3},
                "failures": {"leave": 0.6},
                "memory": {"leave": 0.9},
            }
        },
        "memory: leave (default 0.75) must be below enter",
    ),
    "PromQL beside a query's name, everywhere": (
        {"criteria": {signal.value: {"query": "q", "promql": "x"} for signal in Signal}},
        "not both: name a query",
    ),
    "leave on the wrong side of enter, everywhere": (
        {
            "criteria": {
                signal.value: {"enter": record.default.leave, "leave": record.default.enter}
                for signal, record in SIGNALS.items()
                if "leave" in record.attributes
            }
        },
        "leave (default",
    ),
    "promotion above enter, everywhere": (
        {
            "criteria": {
                signal.value: {"enter": record.default.promote_below, "promoteBelow": record.default.enter}
                for signal, record in SIGNALS.items()
                if "promote_below" in record.attributes
            }
        },
        "because a breach never promotes",
    ),
    "durations past every bound": (
        {
            "reenable": {"backoffLimit": "721h", "stable": "8761h"},
            "rollback": {
                "deadlines": {"P0": "0s", "P2": "25h"},
                "emergency": {"expectedRestart": "0s"},
                "gradual": {"sustain": "25h"},
                "canary": {"window": "25h"},
                "mitigation": {"overflow": {"window": "25h", "dwell": "25h"}},
            },
        },
        "reenable.stable must be at most 8760h",
    ),
    "a window of no length": (
        {"schedule": {"windows": [{"start": "09:00", "end": "09:00"}]}},
        "start and end of a window must differ",
    ),
    "a time of no day": ({"schedule": {"windows": [{"start": "9:00"}]}}, "should match"),
    "a window on no day": ({"schedule": {"windows": [{"days": []}]}}, "at least 1"),
    "a fleet share of 0": ({"rollback": {"fleetShare": 0}}, "greater than 0"),
    "a fleet share in percent": ({"rollback": {"fleetShare": 25}}, "less than or equal to 1"),
    "a fleet of nobody": ({"rollback": {"fleetMinimum": 0}}, "greater than or equal to 1"),
}
"""What it refuses, and a part of its answer."""
