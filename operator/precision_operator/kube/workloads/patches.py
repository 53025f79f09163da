"""Actions as JSON patches. Pure: a slim view and an action in, operations out.

Every patch begins with ``test`` on the uid and on our own annotation as it was read, never on resourceVersion: the
kubelet's and controllers' status writes would turn an emergency into a storm of conflicts.
"""

import json
from collections.abc import Iterator, Mapping

from precision_operator.api.modes import Mode
from precision_operator.api.wire import generation_text
from precision_operator.contract import (
    ENABLE,
    ENABLE_ENV,
    GENERATION,
    GROWTH_INTERVAL,
    LATCH,
    LOSS_SCALE_FACTOR,
    MODE,
    MODE_ENV,
    ORIGINAL,
    REQUEST,
    SETTLE,
)
from precision_operator.core.actions import Latch, RequestPod, Settle, Tuning, WriteTemplate
from precision_operator.core.model import SettleIntent
from precision_operator.errors import PolicyError, PreconditionFailed
from precision_operator.kube.port import JsonObject, JsonValue, Operation
from precision_operator.kube.workloads.port import ContainerSlot, DeploymentView, EnvEntry, Template
from precision_operator.kube.workloads.reading import Source, parse_request, source_of

OWN = "/metadata/annotations"
POD_TEMPLATE = "/spec/template"
INNER = f"{POD_TEMPLATE}/metadata/annotations"


def compact(value: JsonValue) -> str:
    """JSON without spaces, keys in the order given."""
    return json.dumps(value, separators=(",", ":"))


def pointer(base: str, key: str) -> str:
    """The path of a map's key, escaped."""
    return f"{base}/{key.replace('~', '~0').replace('/', '~1')}"


def carried(mode: Mode, generation: int, *, rewind: bool = False, tuning: Tuning | None = None) -> dict[str, str]:
    """The three annotations that tell a pod its mode."""
    request: JsonObject = {"generation": generation, "mode": mode.value}
    if rewind:
        request["rewind"] = True
    if tuning is not None and tuning.loss_scale_factor is not None:
        request[LOSS_SCALE_FACTOR] = tuning.loss_scale_factor
    if tuning is not None and tuning.growth_interval is not None:
        request[GROWTH_INTERVAL] = tuning.growth_interval
    return {
        REQUEST: compact(request),
        ENABLE: "false" if mode is Mode.FP32 else "true",
        MODE: mode.value,
    }


def changes(base: str, current: Mapping[str, str | None], wanted: Mapping[str, str | None]) -> list[Operation]:
    """Operations that bring the annotations of an existing map to what is wanted (None: absent)."""
    operations = []
    for key, value in wanted.items():
        if value is None and current.get(key) is not None:
            operations.append(Operation("remove", pointer(base, key)))
        elif value is not None and value != current.get(key):
            operations.append(Operation("add", pointer(base, key), value))
    return operations


def ensure_map(base: str, exists: bool) -> list[Operation]:
    """Make the annotations map where there is none, and notice when somebody made it meanwhile."""
    return [] if exists else [Operation("test", base), Operation("add", base, {})]


def writes_anything(operations: list[Operation]) -> bool:
    """Whether the patch changes anything beyond making empty maps."""
    return any(o.op != "test" and o.value != {} for o in operations)


def refuse_older(found: int | None, ours: int, what: str) -> None:
    """An older leader must not overwrite a newer one's value, even after reading it."""
    if found is not None and found > ours:
        raise PreconditionFailed(f"{what} carries generation {found}, newer than {ours}")


def request_pod(action: RequestPod) -> list[Operation]:
    """The request onto a running pod; environment annotations too, for when its containers start again."""
    pod = action.pod
    refuse_older(pod.request.generation if pod.request else None, action.generation, f"pod {pod.name}")
    operations = [Operation("test", "/metadata/uid", pod.uid), *ensure_map(OWN, pod.has_annotations)]
    if pod.has_annotations:
        operations.append(Operation("test", pointer(OWN, REQUEST), pod.request_raw))
    values = carried(action.mode, action.generation, rewind=action.rewind, tuning=action.tuning)
    if pod.request_raw == values[REQUEST]:
        return []
    return operations + changes(OWN, {}, values)


def guard(view: DeploymentView, generation: int) -> list[Operation]:
    """Tests that hold only for the object that was decided on."""
    refuse_older(generation_text(view.generation_raw), generation, f"{view.namespace}/{view.name}")
    operations = [Operation("test", "/metadata/uid", view.uid), *ensure_map(OWN, view.has_annotations)]
    if view.has_annotations:
        operations.append(Operation("test", pointer(OWN, GENERATION), view.generation_raw))
    return operations


def _own(view: DeploymentView, wanted: Mapping[str, str | None]) -> list[Operation]:
    """Changes of the annotations on the workload itself; the original is added where it is not kept yet."""
    current = {GENERATION: view.generation_raw, LATCH: view.latch_raw, SETTLE: view.settle_raw}
    kept = {} if view.has_original else {ORIGINAL: compact(original_of(view.template))}
    return changes(OWN, current, {**kept, **wanted})


def _inner(view: DeploymentView, mode: Mode, generation: int) -> list[Operation]:
    template = view.template
    current = {REQUEST: template.request, ENABLE: template.enable, MODE: template.mode}
    wanted = carried(mode, generation)
    return [*ensure_map(INNER, view.has_template_annotations), *changes(INNER, current, wanted)]


def original_of(template: Template) -> JsonObject:
    """The template's values before our first write: annotations (null: absent) and env entries, whole, by container."""
    return {
        "annotations": {REQUEST: template.request, ENABLE: template.enable, MODE: template.mode},
        "containers": [
            {
                "field": slot.field,
                "name": slot.name,
                "hasEnv": slot.has_env,
                "env": [json.loads(entry.raw) for entry in slot.entries],
            }
            for slot in template.slots
        ],
    }


def write_template(view: DeploymentView, action: WriteTemplate) -> list[Operation]:
    """The mode into the template: annotations where it reads them, literals where it has them or none but a reference.

    A settle of ours that was under way ends here: the pause it made would keep the write from taking effect.

    Raises:
        PolicyError: the template gives no way to set its precision.
    """
    slots = view.template.slots
    reads = view.hot or any(_source(entry) is Source.ANNOTATION for slot in slots for entry in slot.entries)
    named = any(entry.name == ENABLE_ENV for slot in slots for entry in slot.entries)
    environment = list(_environment(view.template, action.mode, hot=view.hot))
    if not reads and not named and not environment:
        raise PolicyError(
            "NoPrecisionContract",
            f"{view.namespace}/{view.name} has neither the request file nor {ENABLE_ENV} in its template; see the "
            "contract for what a pod template declares",
        )
    operations = guard(view, action.generation)
    operations += _inner(view, action.mode, action.generation) if reads else []
    operations += environment
    wanted = {GENERATION: str(action.generation), LATCH: action.latch.value if action.latch else None, SETTLE: None}
    operations += _own(view, wanted)
    if view.settle is not None and view.paused != view.settle.was_paused:
        operations.append(Operation("add", "/spec/paused", view.settle.was_paused))
    return operations


def _source(entry: EnvEntry) -> Source:
    return source_of(json.loads(entry.raw))


def _environment(template: Template, mode: Mode, *, hot: bool) -> Iterator[Operation]:
    """Env operations of all containers; where the variable is named nowhere, an envFrom is overridden."""
    named = [slot for slot in template.slots if any(entry.name == ENABLE_ENV for entry in slot.entries)]
    for slot in named:
        yield from _container(slot, mode, hot=hot)
    if not named:
        for slot in template.slots:
            if slot.env_from and slot.field == "containers":
                yield from _override(slot, mode)


def _container(slot: ContainerSlot, mode: Mode, *, hot: bool) -> Iterator[Operation]:
    """What `true` means is said too, unless a request file will say it."""
    wanted = {ENABLE_ENV: "false" if mode is Mode.FP32 else "true", MODE_ENV: mode.value}
    operations: list[Operation] = []
    for entry in slot.entries:
        operations += _set(slot, entry, wanted[entry.name])
    literal = any(entry.name == ENABLE_ENV and _source(entry) is not Source.ANNOTATION for entry in slot.entries)
    if (literal or not hot) and mode is not Mode.FP32 and not any(entry.name == MODE_ENV for entry in slot.entries):
        operations.append(Operation("add", f"{_path(slot)}/env/-", {"name": MODE_ENV, "value": mode.value}))
    if operations:
        yield Operation("test", f"{_path(slot)}/name", slot.name)
        yield from operations


def _set(slot: ContainerSlot, entry: EnvEntry, value: str) -> list[Operation]:
    """An entry in place, so that a restore can give the template back byte for byte; entries that follow our
    annotations are left alone, references to what is not ours are overridden."""
    path = f"{_path(slot)}/env/{entry.index}"
    source = _source(entry)
    if source is Source.ANNOTATION or json.loads(entry.raw).get("value") == value:
        return []
    tested = Operation("test", f"{path}/name", entry.name)
    if source is Source.LITERAL:
        return [tested, Operation("add", f"{path}/value", value)]
    return [tested, Operation("replace", path, {"name": entry.name, "value": value})]


def _override(slot: ContainerSlot, mode: Mode) -> Iterator[Operation]:
    """Literals beat envFrom: a value that may come from a ConfigMap is overridden, and the ConfigMap never touched."""
    base = f"{_path(slot)}/env"
    yield Operation("test", f"{_path(slot)}/name", slot.name)
    if not slot.has_env:
        yield Operation("test", base)
        yield Operation("add", base, [])
    yield Operation("add", f"{base}/-", {"name": ENABLE_ENV, "value": "false" if mode is Mode.FP32 else "true"})
    if mode is not Mode.FP32:
        yield Operation("add", f"{base}/-", {"name": MODE_ENV, "value": mode.value})


def _path(slot: ContainerSlot) -> str:
    return f"{POD_TEMPLATE}/spec/{slot.field}/{slot.index}"


def settle_text(intent: SettleIntent) -> str:
    """The settle annotation."""
    return compact({"generation": intent.generation, "mode": intent.mode.value, "wasPaused": intent.was_paused})


def pause(view: DeploymentView, action: Settle) -> list[Operation]:
    """First write of a settle: stop the Deployment's controller, having said what for and how it stood before."""
    was_paused = view.settle.was_paused if view.settle else view.paused
    intent = SettleIntent(action.generation, action.mode, was_paused)
    operations = guard(view, action.generation)
    operations.append(Operation("test", "/spec/paused", True if view.paused else None))
    if not view.paused:
        operations.append(Operation("add", "/spec/paused", True))
    return operations + _own(view, {GENERATION: str(action.generation), SETTLE: settle_text(intent)})


def latch(view: DeploymentView, action: Latch) -> list[Operation]:
    """The latch alone, where the template already says what it should."""
    wanted = {GENERATION: str(action.generation), LATCH: action.mode.value if action.mode else None}
    return guard(view, action.generation) + _own(view, wanted)


def resume(view: DeploymentView, action: Settle) -> list[Operation]:
    """Last write of a settle: the same annotations in the Deployment's template, and its pause as it was before."""
    if view.settle is None or view.settle.generation != action.generation:
        raise PreconditionFailed(f"{view.namespace}/{view.name} has no settle of generation {action.generation}")
    operations = guard(view, action.generation) + _inner(view, action.mode, action.generation)
    if view.paused != view.settle.was_paused:
        operations.append(Operation("add", "/spec/paused", view.settle.was_paused))
    return operations + _own(view, {LATCH: action.latch.value if action.latch else None, SETTLE: None})


def replicaset(body: Mapping[str, JsonValue], mode: Mode, generation: int) -> list[Operation]:
    """Second write of a settle: the annotations into the current ReplicaSet's template, for its next pods."""
    metadata, spec = _map(body.get("metadata")), _map(body.get("spec"))
    found = _map(_map(_map(spec.get("template")).get("metadata")).get("annotations"))
    current = {key: value for key, value in found.items() if isinstance(value, str)}
    newest = parse_request(current.get(REQUEST))
    refuse_older(newest.generation if newest else None, generation, f"replicaset {metadata.get('name')}")
    operations = [Operation("test", "/metadata/uid", metadata.get("uid")), *ensure_map(INNER, bool(found))]
    if found:
        operations.append(Operation("test", pointer(INNER, REQUEST), current.get(REQUEST)))
    return operations + changes(INNER, current, carried(mode, generation))


def _map(value: JsonValue) -> Mapping[str, JsonValue]:
    return value if isinstance(value, dict) else {}
