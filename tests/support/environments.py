"""Pods by what their containers have in their environment."""

from __future__ import annotations

from tests.support.bodies import FLEET, MEANING, SWITCH, Json, container, literal, pod, variable

CONFIG_MAP = variable("ENABLE_FP16_TRAINING", configMapKeyRef={"name": "c", "key": "k"})
SECRET = variable("ENABLE_FP16_TRAINING", secretKeyRef={"name": "s", "key": "k", "optional": True})
OTHER_FIELD = variable("ENABLE_FP16_TRAINING", fieldRef={"fieldPath": "metadata.labels['fp16']"})
OTHER_ANNOTATION = variable("ENABLE_FP16_TRAINING", fieldRef={"fieldPath": "metadata.annotations['fp16']"})
SWAPPED = variable("ENABLE_FP16_TRAINING", fieldRef={"fieldPath": "metadata.annotations['precision.genesis.ai/mode']"})
RESOURCE = variable("PRECISION_MODE", resourceFieldRef={"containerName": "trainer", "resource": "limits.cpu"})
REFERRING = [{"name": "A", "value": "true"}, {"name": "ENABLE_FP16_TRAINING", "value": "$(A)"}]
FROM_MAP = [{"configMapRef": {"name": "c"}}]
FROM_SECRET = [{"prefix": "P_", "secretRef": {"name": "s", "optional": True}}]

ENTRIES: list[Json] = [
    SWITCH,
    MEANING,
    CONFIG_MAP,
    SECRET,
    OTHER_FIELD,
    OTHER_ANNOTATION,
    SWAPPED,
    RESOURCE,
    {"name": "ENABLE_FP16_TRAINING"},
    *literal("true", "bf16"),
    *literal("false", "fp16"),
    {"name": "ENABLE_FP16_TRAINING", "value": "$(A)"},
    {"name": "PRECISION_MODE", "value": "$(ENABLE_FP16_TRAINING)"},
    {"name": "A", "value": "1"},
    {"name": "B", "value": "$(ENABLE_FP16_TRAINING)"},
    {"name": "enable_fp16_training", "value": "true"},
    {"name": "a.b-c", "value": "~1/~0 \u202e é"},
    variable("NODE", fieldRef={"fieldPath": "spec.nodeName"}),
]
"""What the generator of pods draws from."""


def _env(*entries: Json, **fields: object) -> Json:
    return pod(container(env=list(entries), **fields))


def _single() -> dict[str, Json]:
    return {
        "no env": pod(),
        "an empty env": pod(container(env=[])),
        "env of others": _env({"name": "A", "value": "1"}),
        "both from annotations": _env(SWITCH, MEANING),
        "only the switch from its annotation": _env(SWITCH),
        "only the mode from its annotation": _env(MEANING),
        "only a literal mode": _env(*literal("", "bf16")[1:]),
        **{f"a literal {value!r}": _env(*literal(value)) for value in ("true", "false", " TRUE ", "1", "", "nonsense")},
        **{
            f"a literal true with {mode!r}": _env(*literal("true", mode))
            for mode in ("fp32", "bf16", "fp16", "", "int8")
        },
        "a mode before its switch": _env(*reversed(literal("true", "bf16"))),
        "a switch without a value": _env({"name": "ENABLE_FP16_TRAINING"}),
        "a ConfigMap": _env(CONFIG_MAP),
        "a Secret": _env(SECRET),
        "another field": _env(OTHER_FIELD),
        "another annotation": _env(OTHER_ANNOTATION),
        "the annotation of the mode": _env(SWAPPED),
        "a mode from a resource": _env(SWITCH, RESOURCE),
        "a literal switch and the mode from its annotation": _env(*literal("true"), MEANING),
        "the switch from its annotation and a literal mode": _env(SWITCH, *literal("", "fp16")[1:]),
        "a reference to a variable": _env(*REFERRING),
        "a reference from a later variable": _env(*literal("true"), {"name": "B", "value": "$(ENABLE_FP16_TRAINING)"}),
        "a switch between others": _env({"name": "A", "value": "1"}, *literal("true"), {"name": "Z", "value": "26"}),
        "names in another case": _env({"name": "Enable_FP16_Training", "value": "true"}),
    }


def _several() -> dict[str, Json]:
    many = [{"name": f"V{i}", "value": "x"} for i in range(500)]
    return {
        "the switch twice": _env(*literal("false"), *literal("true")),
        "the switch three ways": _env(CONFIG_MAP, SWITCH, *literal("true")),
        "the annotation after a literal": _env(*literal("true"), SWITCH),
        "the mode twice": _env(*literal("true", "bf16"), *literal("", "fp16")[1:]),
        "everything twice": _env(*literal("true", "bf16"), *literal("true", "fp16"), SWITCH, MEANING),
        "envFrom alone": pod(container(envFrom=FROM_MAP)),
        "envFrom of two": pod(container(envFrom=[*FROM_MAP, *FROM_SECRET])),
        "envFrom and others": _env({"name": "A", "value": "1"}, envFrom=FROM_MAP),
        "envFrom and a literal": _env(*literal("true"), envFrom=FROM_MAP),
        "envFrom and annotations": _env(SWITCH, MEANING, envFrom=FROM_MAP),
        "envFrom and a mode": _env(*literal("", "bf16")[1:], envFrom=FROM_MAP),
        "an empty envFrom": pod(container(envFrom=[])),
        "many variables": _env(*many, *literal("true"), *many),
        "exactly as many as are read": _env(*_entries(1_999), *literal("true")),
        "one more than is read": _env(*literal("true"), *_entries(2_000)),
        "more than is read, ours at the end": _env(*_entries(2_000), *literal("true", "fp16")),
        "more than is read, the switch before the end": _env(*_entries(2_000), *literal("true"), {"name": "A"}),
        "more than is read, the mode at the end": _env(*_entries(2_000), *literal("", "fp16")[1:]),
        "more than is read, in several": pod(
            container("a", env=_entries(1_500)), container("b", env=_entries(1_500)), container("c", envFrom=FROM_MAP)
        ),
    }


def _entries(count: int) -> list[Json]:
    return [{"name": f"V{i}"} for i in range(count)]


def _containers() -> dict[str, Json]:
    init = container("init", env=literal("true"))
    sidecar = container("sidecar", env=literal("true", "fp16"), restartPolicy="Always")
    return {
        "an init container": pod(container(env=literal("true")), initContainers=[init]),
        "only an init container": pod(initContainers=[init]),
        "an init container from annotations": pod(initContainers=[container("init", env=[SWITCH, MEANING])]),
        "an init container with envFrom": pod(initContainers=[container("init", envFrom=FROM_MAP)]),
        "a sidecar": pod(container(env=[SWITCH, MEANING]), initContainers=[sidecar]),
        "an init container and a sidecar": pod(initContainers=[init, sidecar, container("last")]),
        "several containers, one concerned": pod(container("a"), container("b", env=literal("true")), container("c")),
        "several containers, each another way": pod(
            container("a", env=literal("true", "bf16")),
            container("b", envFrom=FROM_SECRET),
            container("c", env=[CONFIG_MAP, {"name": "Z", "value": "1"}]),
            container("d", env=[SWITCH, MEANING]),
            container("e"),
        ),
        "many containers": pod(*(container(f"c{i}", env=literal("true")) for i in range(60))),
        "many containers and init containers": pod(
            *(container(f"c{i}", envFrom=FROM_MAP) for i in range(30)),
            initContainers=[container(f"i{i}", env=[CONFIG_MAP]) for i in range(30)],
        ),
        "ports twice": pod(container(ports=[{"containerPort": 80}, {"containerPort": 81}], env=literal("true"))),
        "the host's network": pod(container(env=literal("true")), hostNetwork=True),
        "an invented scheduler": pod(container(env=literal("true")), schedulerName="none", nodeName="n"),
        "another label": pod(container(env=literal("true")), labels={"app": "web"}),
        "more labels": pod(
            container(env=literal("true")), labels={**FLEET, "team": "vision", "example.com/gpu": "a100", "empty": ""}
        ),
        "a gated pod": pod(container(env=literal("true")), schedulingGates=[{"name": "example.com/wait"}]),
    }


def environments() -> dict[str, Json]:
    """All of them, by what they show."""
    return {**_single(), **_several(), **_containers()}
