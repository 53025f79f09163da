"""The answer to an AdmissionReview: a JSON patch that makes the object what ``admit`` says, or that echoes a generation.

It refuses nothing. manifests/webhook/webhook.yaml says what is sent here.
"""

from collections.abc import Mapping

from precision_operator.admission.known import KnownAssignments
from precision_operator.admission.pod import admit
from precision_operator.api.wire import mapping, sequence, text
from precision_operator.contract import ECHO, ECHO_NONCE

Patch = list[dict[str, object]]

_OF_A_CONTAINER = ("env", "ports", "volumeMounts")
_CONTAINERS = ("containers", "initContainers")


def patch_for(request: Mapping[str, object], known: KnownAssignments, *, injecting: bool = True) -> Patch:
    """The changes to ``request.object``; none where it is neither a new pod nor a question for the echo."""
    namespace, body = text(request.get("namespace")), mapping(request.get("object"))
    match mapping(request.get("resource")).get("resource"), request.get("operation"):
        case "pods", "CREATE":
            return difference(body, admit(body, known.of(namespace), injecting=injecting))
        case "precisionpolicies", "UPDATE" if request.get("dryRun") is True:
            return _echo(body, namespace, known)
    return []


def _echo(policy: Mapping[str, object], namespace: str, known: KnownAssignments) -> Patch:
    """The same answer as manifests/admission/echo.yaml gives."""
    metadata = mapping(policy.get("metadata"))
    name, nonce = text(metadata.get("name")), text(mapping(metadata.get("annotations")).get(ECHO_NONCE))
    generation = known.generation(namespace, name)
    if not nonce or generation is None:
        return []
    return [{"op": "add", "path": f"/metadata/annotations/{_escaped(ECHO)}", "value": f"{nonce}/{name}/{generation}"}]


def difference(before: Mapping[str, object], after: Mapping[str, object]) -> Patch:
    """What makes one pod the other, in the fields that admission may change; a field is replaced as a whole."""
    specs = mapping(before.get("spec")), mapping(after.get("spec"))
    found = _change("/metadata", "annotations", mapping(before.get("metadata")), mapping(after.get("metadata")))
    found += _change("/spec", "volumes", *specs)
    for kind in _CONTAINERS:
        pairs = zip(*(sequence(spec.get(kind)) for spec in specs), strict=True)
        for index, (old, new) in enumerate(pairs):
            for field in _OF_A_CONTAINER:
                found += _change(f"/spec/{kind}/{index}", field, mapping(old), mapping(new))
    return found


def _change(path: str, field: str, before: Mapping[str, object], after: Mapping[str, object]) -> Patch:
    if before.get(field) == after.get(field):
        return []
    if field not in after:
        return [{"op": "remove", "path": f"{path}/{field}"}]
    return [{"op": "add", "path": f"{path}/{field}", "value": after[field]}]


def _escaped(key: str) -> str:
    """A key as a part of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")
