"""The admitted pod: its annotations and its environment, under any number of assignments.

manifests/admission/assign.yaml does the same in the API server, step by step. tests/support/corpus.py holds both
together. Whatever is added here must be total, must not read all of a pod, and must not make a pod invalid.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from precision_operator.admission.annotations import LIMIT_BYTES, OURS, have_room, size
from precision_operator.admission.environment import with_environment
from precision_operator.admission.injection import inject
from precision_operator.api.modes import Mode, is_safer
from precision_operator.api.selector import parse_selector
from precision_operator.api.wire import integer, mapping, text
from precision_operator.contract import ADMITTED, ENABLE, MAX_GENERATION, MODE, REQUEST
from precision_operator.workloads.identity import pod_index, workload_key

MAX_ANNOTATIONS = 1_000
"""More than these are not read: their total size is then not known."""
MAX_ANNOTATION_BYTES = LIMIT_BYTES - 4096
"""The API server refuses a pod with more than 256 KiB of annotations. Ours need less than 4 KiB."""
MAX_RECORD_BYTES = 2_048
"""A longer record was not written by admission, and is dropped."""
MAX_ENTRIES = 20
MAX_LONG_ENTRIES = 7
"""As many as have room in a record, however long the names of the assignments are."""
MAX_ENTRY_BYTES = 274
"""A name of 253 characters, a generation of 15 digits, a mode, and two slashes."""
MAX_REQUEST_BYTES = 4_096
"""A longer request is not read."""

_GENERATION = re.compile(r'\{"generation":([0-9]{1,15})[,}]')


@dataclass(frozen=True, slots=True)
class _Order:
    """What one assignment asks of one pod."""

    assignment: str
    generation: int
    mode: Mode

    @property
    def entry(self) -> str:
        return f"{self.assignment}/{self.generation}/{self.mode}"


def admit(
    pod: Mapping[str, object], assignments: Iterable[Mapping[str, object]], *, injecting: bool = True
) -> Mapping[str, object]:
    """The pod as it is stored: with the contract where its label asks for that, then changed by each assignment that
    selects it and has a mode for its workload.

    ``injecting``: whether the label is obeyed; an admin may not want that.

    The order of the assignments does not matter to the mode: the safest one wins. Doing it twice changes nothing more.
    """
    pod = inject(pod) if injecting else pod
    for assignment in assignments:
        order = _order(pod, assignment)
        if order is not None:
            pod = _obey(pod, order)
    return pod


def _order(pod: Mapping[str, object], assignment: Mapping[str, object]) -> _Order | None:
    labels = mapping(mapping(pod.get("metadata")).get("labels"))
    selector = parse_selector(assignment.get("selector"))
    carried = {key: value for key, value in labels.items() if isinstance(value, str)}
    if assignment.get("enforce") is not True or not selector.matches(carried):
        return None
    mode = _mode(pod, assignment)
    if not text(mode):
        return None
    name = text(mapping(assignment.get("metadata")).get("name"))
    return _Order(name, integer(assignment.get("generation"), 0), _known(mode))


def _mode(pod: Mapping[str, object], assignment: Mapping[str, object]) -> object:
    """What is listed for its workload; else what its index gives it; else the default."""
    key, rest = workload_key(pod), assignment.get("default")
    modes = mapping(assignment.get("modes"))
    if key in modes:
        return modes[key]
    below = 0 <= pod_index(pod) < integer(mapping(assignment.get("indexes")).get(key), 0)
    return assignment.get("indexMode", rest) if below else rest


def _known(mode: object) -> Mode:
    """A mode that this version does not know counts as the safest one."""
    return Mode(text(mode)) if mode in tuple(Mode) else Mode.FP32


def _obey(pod: Mapping[str, object], order: _Order) -> Mapping[str, object]:
    metadata, spec = mapping(pod.get("metadata")), mapping(pod.get("spec"))
    annotations = mapping(metadata.get("annotations"))
    if not _has_room(annotations):
        # Nothing can be recorded, so the next assignment cannot know this one's mode: only the safest is right.
        others = {key: value for key, value in annotations.items() if key not in OURS}
        return {
            **pod,
            "metadata": {**metadata, "annotations": others},
            "spec": with_environment(spec, Mode.FP32, annotated=False),
        }
    admitted = text(annotations.get(ADMITTED))
    mode = _safer(annotations.get(MODE), order.mode) if admitted else order.mode
    generation = max(order.generation, _generation(annotations.get(REQUEST)) if admitted else 0)
    changed = {
        **annotations,
        REQUEST: f'{{"generation":{generation},"mode":"{mode}"}}',
        ENABLE: "false" if mode is Mode.FP32 else "true",
        MODE: str(mode),
        ADMITTED: _record(admitted, order),
    }
    return {
        **pod,
        "metadata": {**metadata, "annotations": changed},
        "spec": with_environment(spec, mode, annotated=True),
    }


def _has_room(annotations: Mapping[str, object]) -> bool:
    """Whether our annotations fit beside those of others, whatever the assignment is called."""
    if len(annotations) - sum(key in annotations for key in OURS) > MAX_ANNOTATIONS:
        return False
    others = {key: value for key, value in annotations.items() if key not in OURS}
    return have_room(others, limit=MAX_ANNOTATION_BYTES)


def _safer(before: object, assigned: Mode) -> Mode:
    """The safer of an earlier assignment's mode and this one's; what is no mode does not count."""
    earlier = Mode(text(before)) if before in tuple(Mode) else assigned
    return earlier if is_safer(earlier, assigned) else assigned


def _generation(request: object) -> int:
    """The generation of a request that admission wrote before; 0 of any other."""
    found = _GENERATION.match(text(request)) if size(text(request)) <= MAX_REQUEST_BYTES else None
    generation = int(found[1]) if found else 0
    return generation if generation <= MAX_GENERATION else 0


def _record(admitted: str, order: _Order) -> str:
    """The record with this assignment's entry first, and those of others as far as there is room."""
    found = admitted.split(" ") if size(admitted) <= MAX_RECORD_BYTES else []
    own = f"{order.assignment}/"
    others = (entry for entry in found if 0 < size(entry) <= MAX_ENTRY_BYTES and not entry.startswith(own))
    entries = [order.entry, *others]
    record = " ".join(entries[:MAX_ENTRIES])
    return record if size(record) <= MAX_RECORD_BYTES else " ".join(entries[:MAX_LONG_ENTRIES])
