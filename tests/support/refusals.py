"""Pods that ask for the contract and do not get it."""

from __future__ import annotations

from tests.support.asking import ITEMS, METRICS, MOUNT, SCRATCH, asking, request_file
from tests.support.bodies import REQUEST_VOLUME, Json, container


def _mounted(*paths: str, **more: object) -> Json:
    mounts = [{"name": "scratch", "mountPath": path, **more} for path in paths]
    return asking(container(volumeMounts=mounts), volumes=[SCRATCH])


def _refused_mounts() -> dict[str, tuple[Json, str]]:
    paths = (
        *("/etc/precision", "/etc/precision/", "//etc//precision", "/./etc/./precision/.", "etc/precision"),
        *("/etc", "/etc/", "etc", "/", "/."),
        *("/etc/precision/x", "/etc/precision//x/y", "/etc/precision/\n"),
        *("/etc/../etc/precision", "..", "/var/..", "/" * 257, "/data/" + "x" * 300),
    )
    taken = {f"a mount at {path[:30]!r} of {len(path)}": (_mounted(path), "MountPathTaken") for path in paths}
    device = container(volumeDevices=[{"name": "disk", "devicePath": "/etc/precision"}])
    disk: Json = {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}
    other = [{"path": "request", "fieldRef": {"fieldPath": "metadata.annotations['mine']"}}]
    elsewhere = [{**ITEMS[0], "path": "precision/request"}]
    many = [{"path": f"f{index}", "fieldRef": {"fieldPath": "metadata.name"}} for index in range(100)]
    return {
        **taken,
        "a device at our path": (asking(device, volumes=[disk]), "MountPathTaken"),
        "our path twice": (
            asking(
                container(volumeMounts=[MOUNT, {**MOUNT, "mountPath": "/etc/precision/"}]), volumes=[REQUEST_VOLUME]
            ),
            "MountPathTaken",
        ),
        "our volume by its file alone": (
            asking(container(volumeMounts=[{**MOUNT, "subPath": "request"}]), volumes=[REQUEST_VOLUME]),
            "MountPathTaken",
        ),
        "our volume by an expanded path": (
            asking(container(volumeMounts=[{**MOUNT, "subPathExpr": "$(A)"}]), volumes=[REQUEST_VOLUME]),
            "MountPathTaken",
        ),
        "another volume of our name": (asking(volumes=[{**SCRATCH, "name": "precision"}]), "VolumeNameTaken"),
        "another annotation in our volume": (
            asking(volumes=[{"name": "precision", "downwardAPI": {"items": other}}]),
            "VolumeNameTaken",
        ),
        "another file in our volume": (
            asking(volumes=[{"name": "precision", "downwardAPI": {"items": elsewhere}}]),
            "VolumeNameTaken",
        ),
        "too many files in our volume": (
            asking(volumes=[{"name": "precision", "downwardAPI": {"items": [*many, *ITEMS]}}]),
            "VolumeNameTaken",
        ),
        "another volume at our path, ours by its name": (
            asking(container(volumeMounts=[{**MOUNT, "name": "scratch"}]), volumes=[REQUEST_VOLUME, SCRATCH]),
            "MountPathTaken",
        ),
    }


def _refused() -> dict[str, tuple[Json, str]]:
    other, init = container("b", ports=[{"containerPort": 9400}]), container("b", ports=[{"containerPort": 9400}])
    mirror = {"kubernetes.io/config.mirror": "hash", "kubernetes.io/config.hash": "hash"}
    return {
        "a container that is not there": (asking(name="main"), "ContainerAbsent"),
        "an empty label": (asking(name=""), "ContainerAbsent"),
        "the name of an init container": (asking(name="init", initContainers=[container("init")]), "ContainerAbsent"),
        "the name of a sidecar": (
            asking(name="side", initContainers=[container("side", restartPolicy="Always")]),
            "ContainerAbsent",
        ),
        "the host's network": (asking(hostNetwork=True), "HostNetwork"),
        "the host's network, by hand": (asking(container(ports=[METRICS]), hostNetwork=True), "HostNetwork"),
        "Windows": (asking(os={"name": "windows"}), "Windows"),
        "a static pod's mirror": (
            asking(annotations=mirror, nodeName="n", automountServiceAccountToken=False, serviceAccountName=""),
            "StaticPod",
        ),
        "the request file elsewhere": (
            asking(container(env=request_file(value="/run/request"))),
            "RequestFileElsewhere",
        ),
        "the request file from a ConfigMap": (
            asking(container(env=request_file(valueFrom={"configMapKeyRef": {"name": "c", "key": "k"}}))),
            "RequestFileElsewhere",
        ),
        "another container's port": (asking(container(), other), "PortTaken"),
        "another container's port and ours": (asking(container(ports=[METRICS]), other), "PortTaken"),
        "an init container's port": (asking(initContainers=[init]), "PortTaken"),
        "a sidecar's port": (asking(initContainers=[{**init, "restartPolicy": "Always"}]), "PortTaken"),
        "the port's name": (asking(container(ports=[{**METRICS, "containerPort": 8080}])), "PortNameTaken"),
        "the port's name elsewhere": (
            asking(container(), container("b", ports=[{**METRICS, "containerPort": 8080}])),
            "PortNameTaken",
        ),
        "a port of our name and number with UDP": (
            asking(container(ports=[{**METRICS, "protocol": "UDP"}])),
            "PortNameTaken",
        ),
    }


def refused() -> dict[str, tuple[Json, str]]:
    """Pods with the reason why nothing is injected into them."""
    return {**_refused(), **_refused_mounts()}
