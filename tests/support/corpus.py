"""The corpus of pods on which all enforcers of admission must agree: more than 300, the same in every run."""

from __future__ import annotations

import random
from collections.abc import Mapping
from zlib import crc32

from tests.support.annotated import FORMS, RECORDS, REQUESTS, annotated
from tests.support.bodies import ALL_PODS, FLEET, Json, assignment, container, needs, ours, owner, pod, request
from tests.support.environments import ENTRIES, FROM_MAP, FROM_SECRET, environments
from tests.support.identities import HASH, JOBSET, LABEL, LWS, PYTORCH, RAY, ROLLOUT, identities
from tests.support.injections import injections

MODES = ("fp32", "bf16", "fp16")
GENERATED = 150
_SEED = 20261122

LABELS: list[dict[str, str]] = [
    {},
    FLEET,
    {"app": "web"},
    {**FLEET, "team": "vision"},
    {**FLEET, "team": "vision", "example.com/gpu": "a100", "empty": ""},
    {"l" * 63: "v" * 63, "p" * 60 + "." + "q" * 60 + ".example.com/" + "n" * 63: "", **FLEET},
]


def corpus() -> dict[str, Json]:
    """Every pod by a name that says what it shows."""
    named = {name: body for name, (body, _) in identities().items()}
    return {**named, **environments(), **annotated(), **indexed(), **generated(), **injections()}


POD_INDEX, COMPLETION_INDEX = "apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index"
INDEXES = ("0", "2", "3", "003", "2147483647", "999999999", "9999999999", "", "2x", "x", "1.5")
"""Values of a label: the first bound of the scene ``indexed`` is 3."""


def indexed() -> dict[str, Json]:
    """Pods with the index that their controller gave them, and such as only say that they have one."""
    stateful, job = owner("apps/v1", "StatefulSet", "numbered"), owner("batch/v1", "Job", "numbered")
    cases: dict[str, tuple[Json | None, dict[str, str]]] = {}
    for index in INDEXES:
        cases[f"a StatefulSet's pod with the index {index!r}"] = stateful, {POD_INDEX: index}
        cases[f"a Job's pod with the index {index!r}"] = job, {COMPLETION_INDEX: index}
    cases |= {
        "a StatefulSet's pod with a Job's index": (stateful, {COMPLETION_INDEX: "0"}),
        "a Job's pod with a StatefulSet's index": (job, {POD_INDEX: "0"}),
        "a Job's pod without an index": (job, {}),
        "a bare pod with both indexes": (None, {POD_INDEX: "0", COMPLETION_INDEX: "0"}),
        "a StatefulSet of another group": (owner("example.com/v1", "StatefulSet", "numbered"), {POD_INDEX: "0"}),
        "a label on a StatefulSet's pod": (stateful, {POD_INDEX: "1", LABEL: "numbered"}),
    }
    return {
        name: pod(container(env=FORMS["literal"]), labels={**FLEET, **labels}, owners=[by] if by else None)
        for name, (by, labels) in cases.items()
    }


def concerned(scene: str, pods: Mapping[str, Json]) -> Mapping[str, Json]:
    """The pods that a scene says something new of: a scene of indexes of those that have one, or claim to."""
    if not scene.startswith("indexed"):
        return pods
    numbered = indexed()
    return {name: body for name, body in pods.items() if name in numbered}


def generated() -> dict[str, Json]:
    """Pods drawn at random, the same each time."""
    draw = random.Random(_SEED)
    return {f"generated {number}": _drawn(draw) for number in range(GENERATED)}


def _drawn(draw: random.Random) -> Json:
    labels, owners = _drawn_owner(draw)
    fields = draw.sample(["request", "mode", "enable-fp16", "admitted"], draw.randint(0, 4))
    values = {
        "request": draw.choice([*REQUESTS[:20], *(request(draw.randint(0, 40), mode) for mode in MODES)]),
        "mode": draw.choice([*MODES, *MODES, "FP16", ""]),
        "enable-fp16": draw.choice(["true", "false", "nonsense"]),
        "admitted": draw.choice([*RECORDS, "fleet/3/bf16", "second/9/fp32"]),
    }
    annotations = {**ours(**{field: values[field] for field in fields}), **draw.choice([{}, {"mine": "kept"}])}
    init = [_drawn_container(draw, f"i{index}") for index in range(draw.randint(0, 2))]
    return pod(
        *(_drawn_container(draw, f"c{index}") for index in range(draw.randint(1, 3))),
        labels={**draw.choice(LABELS), **labels},
        annotations=draw.choice([None, annotations, annotations]),
        owners=owners,
        initContainers=init,
    )


def _drawn_owner(draw: random.Random) -> tuple[dict[str, str], list[Json] | None]:
    name = draw.choice(["vit", "bert-base", "a.b"])
    labels = {LABEL: name, JOBSET: name, LWS: name, RAY: name, ROLLOUT: "6f9d", HASH: "6f9d", **PYTORCH}
    kept = {key: labels[key] for key in draw.sample(sorted(labels), draw.choice([0, 0, 1, 1, 2, 4]))}
    owners = [
        None,
        [owner("apps/v1", "ReplicaSet", f"{name}-6f9d")],
        [owner("apps/v1", "ReplicaSet", name)],
        [owner("apps/v1", "StatefulSet", name)],
        [owner("batch/v1", "Job", f"{name}-0")],
        [owner("v1", "Node", name, controller=draw.choice([True, False]))],
    ]
    return kept, draw.choice(owners)


def _drawn_container(draw: random.Random, name: str) -> Json:
    env = draw.choice([[], *FORMS.values(), draw.choices(ENTRIES, k=draw.randint(1, 6))])
    more: Json = {"envFrom": draw.choice([FROM_MAP, FROM_SECRET])} if draw.random() < 0.2 else {}
    return container(name, **({"env": env} if env else {}), **more)


def mode_of(key: str) -> str:
    """A mode for each key, so that a pod under a wrong key shows."""
    return MODES[crc32(key.encode()) % 3]


SELECTORS: dict[str, Json] = {
    "one-label": {"matchLabels": FLEET},
    "two-labels": {"matchLabels": {**FLEET, "team": "vision"}},
    "prefix": {"matchLabels": {"example.com/gpu": "a100"}},
    "empty-value": {"matchLabels": {"empty": ""}},
    "in": {"matchExpressions": [needs("app", "In", "trainer", "web")]},
    "in-missing": {"matchExpressions": [needs("missing", "In", "x", "")]},
    "in-empty-value": {"matchExpressions": [needs("empty", "In", "")]},
    "not-in": {"matchExpressions": [needs("app", "NotIn", "web")]},
    "not-in-missing": {"matchExpressions": [needs("missing", "NotIn", "x")]},
    "exists": {"matchExpressions": [needs("team", "Exists")]},
    "does-not-exist": {"matchExpressions": [needs("team", "DoesNotExist")]},
    "both": {"matchLabels": FLEET, "matchExpressions": [needs("team", "DoesNotExist")]},
    "contradiction": {"matchLabels": FLEET, "matchExpressions": [needs("app", "NotIn", "trainer")]},
    "empty-labels": {"matchLabels": {}, "matchExpressions": [needs("app", "Exists")]},
    "empty-expressions": {"matchLabels": FLEET, "matchExpressions": []},
    "empty": {},
    "empty-twice": {"matchLabels": {}, "matchExpressions": []},
    "many": {
        "matchExpressions": [needs("app", "Exists"), needs("team", "NotIn", "x", "y"), needs("z", "DoesNotExist")]
    },
}


def scenes(keys: Mapping[str, str]) -> dict[str, list[Json]]:
    """Sets of assignments, each of one namespace. ``keys``: the corpus's keys by pod."""
    modes = {key: mode_of(key) for key in keys.values()}
    long = "n" * 63 + ".m" * 95
    numbered = ("apps/StatefulSet/numbered", "batch/Job/numbered", "label/numbered")
    return {
        "none": [],
        "keyed": [assignment(selector=ALL_PODS, modes=modes)],
        "two": [
            assignment(default="fp16", modes={k: m for k, m in modes.items() if m == "bf16"}, generation=17),
            assignment(
                "second", selector=ALL_PODS, default="bf16", generation=2**49, modes=dict.fromkeys(modes, "fp16")
            ),
        ],
        "indexed": [
            assignment(
                selector=ALL_PODS,
                default="fp32",
                modes={k: m for k, m in modes.items() if m == "bf16" and k not in numbered},
                indexes=dict.fromkeys([*modes, *numbered], 3),
                indexMode="fp16",
            ),
        ],
        "indexed twice": [
            assignment(selector=ALL_PODS, default="fp32", indexes=dict.fromkeys(numbered, 10_000), indexMode="fp16"),
            assignment("second", selector=ALL_PODS, default="bf16", indexes=dict.fromkeys(numbered, 1)),
            assignment("third", selector=ALL_PODS, indexes=dict.fromkeys(numbered, 3), indexMode="bf16"),
        ],
        "long": [assignment(long, selector=ALL_PODS, default="bf16", generation=0)],
        "selectors": [
            assignment(name, selector=selector, default=("fp16", "bf16", "fp32")[index % 3], generation=index)
            for index, (name, selector) in enumerate(SELECTORS.items())
        ],
        "idle": [
            assignment("not-enforced", selector=ALL_PODS, default="fp32", enforce=False),
            assignment("says-nothing", selector=ALL_PODS, default="fp32", enforce=None),
            assignment("lists-none", selector=ALL_PODS, modes={"apps/Deployment/nobody": "fp32"}),
            assignment("selects-none", selector={}, default="fp32"),
        ],
    }
