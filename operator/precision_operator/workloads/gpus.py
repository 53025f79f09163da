"""How many GPUs a pod asks for. Pure, and tolerant of odd bodies."""

from collections.abc import Mapping

from precision_operator.api.wire import count_text, mapping, sequence

MOST_GPUS = 1024
"""Of a pod: more is no count of GPUs that a node could have."""

_VENDORS = ("nvidia.com/", "amd.com/", "gpu.intel.com/")


def gpus_of(spec: Mapping[str, object]) -> int | None:
    """By the limits of its containers; None where it asks for what is no whole GPU: a MIG device, a slice, a claim."""
    if sequence(spec.get("resourceClaims")):
        return None
    found = 0
    for container in map(mapping, sequence(spec.get("containers"))):
        for name, amount in mapping(mapping(container.get("resources")).get("limits")).items():
            count = count_text(str(amount)) if name.endswith("/gpu") else None
            if count is None and name.startswith(_VENDORS):
                return None
            found += count or 0
    return found if found <= MOST_GPUS else None
