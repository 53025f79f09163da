"""AdmissionReviews, as an API server sends them, and what their answers make of the object."""

from __future__ import annotations

import base64
import copy
import json

from precision_operator.kube.port import Operation
from tests.support.bodies import Json
from tests.support.fake_kube import apply_operation


def request(body: Json, *, namespace: str = "training", **fields: object) -> Json:
    """The creation of a pod."""
    resource = {"group": "", "version": "v1", "resource": "pods"}
    return {"uid": "r", "namespace": namespace, "operation": "CREATE", "resource": resource, "object": body, **fields}


def question(policy: str, nonce: str | None, *, dry_run: bool = True, namespace: str = "training") -> Json:
    """A patch of a policy."""
    annotations = {} if nonce is None else {"precision.genesis.ai/echo-nonce": nonce}
    body = {"metadata": {"name": policy, "namespace": namespace, "annotations": annotations}}
    resource = {"group": "precision.genesis.ai", "version": "v1alpha1", "resource": "precisionpolicies"}
    return request(body, namespace=namespace, operation="UPDATE", resource=resource, dryRun=dry_run)


def review(asked: Json) -> Json:
    """What is posted."""
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}


def applied(body: Json, patch: list[Json]) -> Json:
    """The object after a JSON patch."""
    changed = copy.deepcopy(body)
    for change in patch:
        apply_operation(changed, Operation(change["op"], change["path"], change.get("value")))
    return changed


def patch_of(answer: Json) -> list[Json]:
    """The patch that an answered AdmissionReview holds."""
    response = answer["response"]
    assert response["allowed"] is True
    return json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
