"""An OCI layout: a folder of blobs named by their hashes, in which images share the layers they have in common."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

Json = dict[str, Any]

_REF = "org.opencontainers.image.ref.name"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CHUNK = 1 << 20


class Layout:
    """The images in a folder, each known by a short reference."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def manifest_digest(self, reference: str) -> str | None:
        """Return the digest of an image's manifest, or None where there is no such image."""
        index = self.directory / "index.json"
        if not index.exists():
            return None
        for entry in json.loads(index.read_text())["manifests"]:
            if entry.get("annotations", {}).get(_REF) == reference:
                return str(entry["digest"])
        return None

    def blobs(self, reference: str) -> list[str]:
        """Return the digests of an image's configuration and of its layers, in this order."""
        manifest = self._manifest(reference)
        return [manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"])]

    def add_root(self, reference: str, tar: Path) -> None:
        """Make an image of one layer, a root file system, without unpacking it."""
        layer = self._add_file(tar)
        config = {
            "architecture": _architecture(),
            "os": "linux",
            "config": {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
            "history": [{"created_by": "root file system"}],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **self._add(_encode(config))},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", **layer}],
        }
        described = {"mediaType": _MANIFEST, **self._add(_encode(manifest)), "annotations": {_REF: reference}}
        index = self.directory / "index.json"
        known = json.loads(index.read_text())["manifests"] if index.exists() else []
        (self.directory / "oci-layout").write_text(_LAYOUT)
        index.write_text(json.dumps({"schemaVersion": 2, "manifests": [*known, described]}))

    def archive(self, reference: str, name: str, target: Path, *, without: Collection[str] = ()) -> None:
        """Write an image as an archive that calls it `name`, leaving out the blobs that the receiver has already."""
        digest = self.manifest_digest(reference)
        assert digest is not None, f"{reference} is in {self.directory}"
        described = {
            "mediaType": _MANIFEST,
            "digest": digest,
            "size": self._blob(digest).stat().st_size,
            "annotations": {"io.containerd.image.name": name, _REF: name.rpartition(":")[2]},
        }
        with tarfile.open(target, "w") as tar:
            _add_text(tar, "oci-layout", _LAYOUT)
            for blob in (digest, *self.blobs(reference)):
                if blob not in without:
                    tar.add(self._blob(blob), arcname=f"blobs/{blob.replace(':', '/')}")
            _add_text(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": [described]}))

    def _manifest(self, reference: str) -> Json:
        digest = self.manifest_digest(reference)
        assert digest is not None, f"{reference} is in {self.directory}"
        manifest: Json = json.loads(self._blob(digest).read_text())
        return manifest

    def _blob(self, digest: str) -> Path:
        return self.directory / "blobs" / digest.replace(":", "/")

    def _add(self, data: bytes) -> Json:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        target = self._blob(digest)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        return {"digest": digest, "size": len(data)}

    def _add_file(self, file: Path) -> Json:
        sha = hashlib.sha256()
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                sha.update(chunk)
        digest = f"sha256:{sha.hexdigest()}"
        target = self._blob(digest)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            scratch = target.with_name(f"{target.name}.{os.getpid()}")
            shutil.copyfile(file, scratch)
            scratch.replace(target)
        return {"digest": digest, "size": file.stat().st_size}


_LAYOUT = json.dumps({"imageLayoutVersion": "1.0.0"})


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


def _encode(value: Json) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(text)
    tar.addfile(info, io.BytesIO(text.encode()))
