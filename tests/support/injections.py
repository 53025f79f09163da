"""Pods whose label asks for the contract: what is injected, what is there already, and what stands against it."""

from __future__ import annotations

import random

from tests.support.annotated import LIMIT
from tests.support.asking import METRICS, MOUNT, PROJECTED, RESTRICTED, SCRATCH, UID, asking, request_file
from tests.support.bodies import MEANING, REQUEST_VOLUME, SWITCH, Json, container, literal, ours, owner, pod, request
from tests.support.environments import ENTRIES, FROM_MAP
from tests.support.identities import HASH
from tests.support.refusals import refused

GENERATED = 60
_SEED = 20261122
MOST_ANNOTATION_BYTES = LIMIT - 9216
MOST_PARTS = 1_000


def _plain() -> dict[str, Json]:
    return {
        "the label alone": asking(),
        "empty lists": asking(container(env=[], ports=[], volumeMounts=[]), annotations={}, volumes=[]),
        "of a Deployment": asking(labels={HASH: "5d4f"}, owners=[owner("apps/v1", "ReplicaSet", "vit-5d4f")]),
        "not of the fleet": asking(labels={"app": "web"}),
        "annotations of others": asking(annotations={"mine": "kept", "a/b_c": "~1/~0"}),
        "the second of three": asking(container("a"), container(), container("c")),
        "beside an init container and a sidecar": asking(
            initContainers=[container("init"), container("side", restartPolicy="Always")]
        ),
        "lists of others": asking(
            container(
                env=[{"name": "A", "value": "$(ENABLE_FP16_TRAINING)"}],
                ports=[{"containerPort": 80}, {"name": "http", "containerPort": 8080}],
                volumeMounts=[{"name": "scratch", "mountPath": "/scratch"}],
            ),
            volumes=[SCRATCH],
        ),
        "restricted, with a read-only root": asking(container(securityContext=RESTRICTED)),
        "a template that says what it begins in": asking(annotations=ours(enable_fp16="true", mode="bf16")),
        "a gated pod": asking(schedulingGates=[{"name": "example.com/wait"}]),
        "Linux, said": asking(os={"name": "linux"}),
        "no token": asking(automountServiceAccountToken=False),
    }


def _declared() -> dict[str, Json]:
    everything = container(env=[SWITCH, MEANING, UID], ports=[METRICS], volumeMounts=[MOUNT])
    volumes = [REQUEST_VOLUME]
    return {
        "everything by hand": asking(everything, volumes=volumes),
        "everything by hand, and scraped": asking(
            everything, volumes=volumes, annotations={"prometheus.io/scrape": "true", "prometheus.io/port": "9400"}
        ),
        "the volume by hand": asking(volumes=volumes),
        "the volume and its mount by hand": asking(container(volumeMounts=[MOUNT]), volumes=volumes),
        "the volume by hand, mounted elsewhere": asking(
            container(volumeMounts=[{**MOUNT, "mountPath": "/run/precision"}]), volumes=volumes
        ),
        "a volume of another name by hand": asking(
            container(volumeMounts=[{**MOUNT, "name": "all"}]), volumes=[PROJECTED]
        ),
        "our mount in other letters": asking(
            container(volumeMounts=[{**MOUNT, "mountPath": "//etc/./precision/"}]), volumes=volumes
        ),
        "a projected volume of our name": asking(volumes=[{**PROJECTED, "name": "precision"}]),
        "the environment by hand": asking(container(env=[SWITCH, MEANING])),
        "only the switch by hand": asking(container(env=[SWITCH])),
        "only the mode by hand": asking(container(env=[MEANING])),
        "the pod's uid from elsewhere": asking(container(env=[{"name": "PRECISION_POD_UID", "value": "mine"}])),
        "the request file where it is anyway": asking(container(env=request_file(value="/etc/precision/request"))),
        "a literal switch": asking(container(env=literal("true"))),
        "a literal switch and mode": asking(container(env=[*literal("true", "bf16"), UID])),
        "a literal mode": asking(container(env=literal("", "bf16")[1:])),
        "the mode twice": asking(container(env=[*literal("", "bf16")[1:], MEANING])),
        "envFrom": asking(container(envFrom=FROM_MAP)),
        "envFrom and a switch": asking(container(env=literal("true"), envFrom=FROM_MAP)),
        "the port by hand": asking(container(ports=[METRICS])),
        "the port without a name": asking(container(ports=[{"containerPort": 9400}])),
        "the port under another name": asking(container(ports=[{**METRICS, "name": "http"}])),
        "the port with UDP": asking(container(ports=[{"containerPort": 9400, "protocol": "UDP"}])),
        "another container's port with SCTP": asking(
            container(), container("b", ports=[{"containerPort": 9400, "protocol": "SCTP"}])
        ),
        "scraped elsewhere": asking(annotations={"prometheus.io/scrape": "true", "prometheus.io/port": "8080"}),
        "not to be scraped": asking(annotations={"prometheus.io/scrape": "false"}),
        "scraped under another path": asking(annotations={"prometheus.io/path": "/stats"}),
        "a record of another pod": asking(annotations=ours(injected="somebody", admitted="other/1/fp16", mode="fp16")),
        "a forged refusal": asking(annotations=ours(injected="refused: HostNetwork")),
        "a record without the label": pod(annotations=ours(injected="trainer")),
    }


def _variables(count: int) -> list[Json]:
    return [{"name": f"V{index}"} for index in range(count)]


def _filled(size: int, more: dict[str, str] | None = None) -> Json:
    return asking(annotations={"fill": "x" * (size - len("fill")), **(more or {})})


def _counted(count: int, more: dict[str, str] | None = None) -> Json:
    return asking(annotations={**{f"n{index}": "" for index in range(count)}, **(more or {})})


def _large() -> dict[str, Json]:
    """At the limits and beyond. The mount and the volume of a ServiceAccount's token would be parts too."""
    mine = ours(request=request(5, "fp16"), mode="fp16", enable_fp16="true", admitted="other/1/fp16")
    scraped = {"prometheus.io/scrape": "true", "prometheus.io/port": "9400"}
    ports = [{"containerPort": number} for number in range(1, 401)]
    volumes = [{"name": f"v{index}", "emptyDir": {}} for index in range(300)]
    mounts = [{"name": "v0", "mountPath": f"/m{index}"} for index in range(298)]
    bare: Json = {"automountServiceAccountToken": False}
    return {
        "as many variables as are read": asking(container(env=_variables(MOST_PARTS)), **bare),
        "one variable more than is read": asking(container(env=_variables(MOST_PARTS + 1)), **bare),
        "as many variables as are read, and ours": asking(
            container(env=[*literal("true"), MEANING, UID, *_variables(MOST_PARTS)]), **bare
        ),
        "as many variables as are read, with an envFrom": asking(
            container(env=_variables(MOST_PARTS), envFrom=FROM_MAP), container("b", envFrom=FROM_MAP), **bare
        ),
        "as many variables as are read, in others": asking(
            container(),
            *(container(f"c{index}", env=[*literal("true"), *_variables(20)]) for index in range(50)),
            **bare,
        ),
        "one more than is read, in others": asking(
            container(env=[{"name": "A"}]),
            *(container(f"c{index}", env=[*literal("true"), *_variables(20)]) for index in range(50)),
            **bare,
        ),
        "our switch a thousand times": asking(container(env=literal("true") * (MOST_PARTS + 1)), **bare),
        "our switch a thousand times and once more": asking(container(env=literal("true") * (MOST_PARTS + 2)), **bare),
        "as many parts as are read": asking(
            container(ports=ports, volumeMounts=[*mounts, {"name": "v0", "mountPath": "/n"}]),
            container("b", env=_variables(1)),
            volumes=volumes,
            **bare,
        ),
        "a thousand parts and one": asking(
            container(ports=ports, volumeMounts=mounts, env=_variables(3)), volumes=volumes, **bare
        ),
        "a hundred containers": asking(container(), *(container(f"c{index}") for index in range(99))),
        "a hundred containers and one": asking(
            container(),
            *(container(f"c{index}") for index in range(50)),
            initContainers=[container(f"i{index}") for index in range(50)],
        ),
        "far too many variables": asking(container(env=_variables(5_000))),
        "annotations that leave room": _filled(MOST_ANNOTATION_BYTES),
        "annotations that leave no room": _filled(MOST_ANNOTATION_BYTES + 1),
        "annotations that leave no room, and a record": _filled(MOST_ANNOTATION_BYTES + 1, ours(injected="trainer")),
        "annotations at the limit": _filled(LIMIT),
        "ours beside annotations that leave room": _filled(MOST_ANNOTATION_BYTES, {**mine, **scraped}),
        "as many annotations as are read": _counted(900),
        "one annotation more than is read": _counted(901),
        "as many annotations as are read, and ours": _counted(900, {**mine, **scraped, **ours(injected="x")}),
        "a long scrape annotation": asking(annotations={"prometheus.io/port": "9" * (LIMIT - 18)}),
        "far too many annotations": _counted(5_000),
    }


def _drawn(draw: random.Random) -> Json:
    """One of everything that matters, drawn at random."""
    volumes = draw.choice([[], [], [SCRATCH], [REQUEST_VOLUME], [PROJECTED], [{**SCRATCH, "name": "precision"}]])
    containers = [_drawn_container(draw, f"c{index}", volumes) for index in range(draw.randint(1, 3))]
    annotations = {
        **draw.choice([{}, {}, {"prometheus.io/scrape": "true"}, {"prometheus.io/port": "9400"}]),
        **draw.choice([{}, ours(mode="fp16", request=request(5, "fp16")), ours(admitted="other/1/bf16", mode="bf16")]),
        **draw.choice([{}, {}, ours(injected="c0")]),
    }
    return asking(
        *containers,
        name=draw.choice(["c0", "c0", "c0", "c1"]),
        annotations=annotations or None,
        volumes=volumes,
        initContainers=[_drawn_container(draw, "i0", volumes)] if draw.random() < 0.3 else [],
    )


def _drawn_container(draw: random.Random, name: str, volumes: list[Json]) -> Json:
    mounted = draw.choice(["/etc/precision", "/etc/precision/x", "/data", "/data"])
    ports = [{"containerPort": 80}, METRICS, {**METRICS, "protocol": "UDP"}, {**METRICS, "containerPort": 81}]
    fields: Json = {
        "env": draw.sample([*ENTRIES, UID, *request_file(value="/etc/precision/request")], draw.choice([0, 0, 1, 3])),
        "envFrom": FROM_MAP if draw.random() < 0.2 else [],
        "ports": draw.sample(ports, draw.choice([0, 0, 0, 1])),
        "volumeMounts": [{"name": volume["name"], "mountPath": mounted} for volume in volumes if draw.random() < 0.5],
    }
    return container(name, **{key: value for key, value in fields.items() if value or draw.random() < 0.2})


def injections() -> dict[str, Json]:
    """All of them, by what they show."""
    conflicts = {name: body for name, (body, _) in refused().items()}
    found = {**_plain(), **_declared(), **conflicts, **_large()}
    draw = random.Random(_SEED)
    generated = {f"generated {number}": _drawn(draw) for number in range(GENERATED)}
    return {f"injection: {name}": body for name, body in {**found, **generated}.items()}
