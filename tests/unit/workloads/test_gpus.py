"""GPUs of a pod: counted where they are whole, else not known."""

from __future__ import annotations

import pytest

from precision_operator.workloads.gpus import MOST_GPUS, gpus_of


def limits(*containers: object, **spec: object) -> dict[str, object]:
    """A pod's spec with these limits, a container each."""
    return {"containers": [{"resources": {"limits": found}} for found in containers], **spec}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (limits({"nvidia.com/gpu": "8"}), 8),
        (limits({"amd.com/gpu": 2}, {"cpu": "4", "memory": "8Gi"}, {"amd.com/gpu": "1"}), 3),
        (limits({"cpu": "500m", "example.com/licence": "1"}), 0),
        (limits({"nvidia.com/mig-1g.5gb": "1"}), None),
        (limits({"nvidia.com/gpu.shared": "4"}), None),
        (limits({"nvidia.com/gpu": "1k"}), None),
        (limits({"nvidia.com/gpu": "9" * 5000}), None),
        (limits({"nvidia.com/gpu": str(MOST_GPUS + 1)}), None),
        (limits({}, resourceClaims=[{"name": "gpu"}]), None),
        (limits({}, initContainers=[{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]), 0),
        ({"containers": "odd"}, 0),
        ({}, 0),
    ],
)
def test_gpus_are_counted_by_the_limits_of_the_containers(spec: dict[str, object], expected: int | None) -> None:
    assert gpus_of(spec) == expected
