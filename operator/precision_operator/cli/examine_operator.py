"""What ``doctor`` asks about the operator: replicas, rights, Lease, what stands behind its endpoints, and its echo."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from precision_operator.api.state import State
from precision_operator.api.text import names
from precision_operator.api.wire import generation_text, mapping, parse_time, text
from precision_operator.cli.findings import Diagnosis, error, ok, warning
from precision_operator.cli.installed import config_of, install_line, installed, meta
from precision_operator.cli.output import age
from precision_operator.cli.release import PART_OF
from precision_operator.cli.session import Session, Target
from precision_operator.cli.write import self_review
from precision_operator.contract import ECHO, ECHO_NONCE
from precision_operator.errors import Forbidden, NotFound
from precision_operator.kube.endpoints import ready_servers
from precision_operator.kube.port import (
    ENDPOINT_SLICES,
    JOBS,
    LEASES,
    PODS,
    POLICIES,
    JsonObject,
    Resource,
)
from precision_operator.settings import LeaseSettings
from precision_operator.workloads.kinds.table import KINDS

ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews")
SUBJECT_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews")
SERVICES = Resource("", "v1", "services")
_OURS = "precision.genesis.ai"
RIGHTS = (
    (_OURS, "precisionpolicies", "get list watch patch"),
    (_OURS, "precisionpolicies/status", "patch"),
    (_OURS, "precisionassignments", "get list watch create update delete"),
    (_OURS, "precisionincidents", "get list create update delete"),
    *((kind.resource.group, kind.resource.plural, "list watch") for kind in KINDS if kind.resource != PODS),
    (JOBS.group, JOBS.plural, "patch"),
    ("", "pods", "get list watch patch delete"),
    ("", "pods/eviction", "create"),
    ("policy", "poddisruptionbudgets", "list"),
    ("", "events", "create patch"),
)
"""(group, resource, verbs) that the operator needs where it has fleets; the chart's ``precision-operator.rules``."""
_STALE_LEASES = 3
"""Durations after which nobody leads, whatever the clocks say."""


async def running(session: Session) -> AsyncIterator[Diagnosis]:
    """Its replicas."""
    found = await installed(session)
    if found.body is None:
        yield error("operator", "no Deployment of the chart is installed", await install_line(session))
        return
    ready = mapping(found.body.get("status")).get("readyReplicas") or 0
    wanted = mapping(found.body.get("spec")).get("replicas")
    made = error if not ready else ok if ready == wanted else warning
    mend = () if made is ok else (session.everywhere("-n", found.namespace, "get", "pods", "-l", PART_OF),)
    yield made(
        "operator", f"{found.namespace}/{meta(found.body, 'name')}: {ready} of {wanted} replicas are ready", *mend
    )


async def rights(session: Session) -> AsyncIterator[Diagnosis]:
    """What its service account may do, as the API server answers, in the namespaces that it watches or in this one."""
    found = await installed(session)
    if found.body is None:
        return
    settings = await config_of(session, found)
    account = text(found.pod_spec.get("serviceAccountName")) or "default"
    who = f"{found.namespace}:{account}"
    for namespace in (settings.watch_namespaces if settings else ()) or (session.namespace,):
        asked = [(verb, group, kind) for group, kind, verbs in RIGHTS for verb in verbs.split()]
        answers = await asyncio.gather(*(may(session, *one, namespace=namespace, account=who) for one in asked))
        lacks = [f"{verb} {kind}" for (verb, _, kind), allowed in zip(asked, answers, strict=True) if not allowed]
        if lacks:
            said = f"{found.namespace}/{account} lacks {names(lacks)} in {namespace}"
            yield error("operator rights", said, await install_line(session))
        else:
            yield ok("operator rights", f"{found.namespace}/{account} may do what it must in {namespace}")


async def may(session: Session, verb: str, group: str, kind: str, *, namespace: str, account: str = "") -> bool:
    """Whether the API server allows it to this service account, ``namespace:name``; without one, to who asks."""
    resource, _, part = kind.partition("/")
    asked: JsonObject = {
        "namespace": namespace,
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": part,
    }
    spec: JsonObject = {"resourceAttributes": asked}
    if account:
        home, _, _ = account.partition(":")
        spec["user"] = f"system:serviceaccount:{account}"
        spec["groups"] = ["system:serviceaccounts", f"system:serviceaccounts:{home}", "system:authenticated"]
    reviews, what = (SUBJECT_REVIEWS, "SubjectAccessReview") if account else (ACCESS_REVIEWS, "SelfSubjectAccessReview")
    review: JsonObject = {"apiVersion": reviews.api_version, "kind": what, "spec": spec}
    answer = await session.api.create(reviews, "", review)
    return bool(mapping(answer.get("status")).get("allowed"))


async def lease(session: Session) -> AsyncIterator[Diagnosis]:
    """Whether a replica leads."""
    found = await installed(session)
    config = await config_of(session, found)
    settings = config.lease if config is not None else LeaseSettings()
    show = session.everywhere("-n", found.namespace, "logs", "-l", PART_OF, "--tail=50")
    leases = [body for body in await session.api.list(LEASES, "") if meta(body, "name") == settings.name]
    renewed = {parse_time(text(mapping(b.get("spec")).get("renewTime"))) or 0.0: b for b in leases}
    if not renewed:
        yield error("lease", f"no Lease {settings.name}: no operator has ever led", show)
        return
    newest = max(renewed)
    spec, now = mapping(renewed[newest].get("spec")), await server_time(session) or time.time()
    holder, seconds = text(spec.get("holderIdentity")), float(str(spec.get("leaseDurationSeconds") or 0))
    if not holder or now - newest > _STALE_LEASES * max(seconds, settings.duration_seconds):
        yield error("lease", f"nobody leads; renewed last {age(newest, now=now)} ago", show)
    else:
        yield ok("lease", f"held by {holder}, renewed {age(newest, now=now)} ago")


async def server_time(session: Session) -> float | None:
    """The API server's clock, by the review that it makes of who asks."""
    return parse_time(meta(await self_review(session), "creationTimestamp"))


async def endpoints(session: Session) -> AsyncIterator[Diagnosis]:
    """Whether anybody stands behind the Services of its metric sources, and behind its webhook's."""
    found = await installed(session)
    if found.body is None:
        return
    settings = await config_of(session, found)
    if settings is None:
        mend = session.everywhere("-n", found.namespace, "auth", "can-i", "get", "configmaps")
        yield warning("endpoints", "the operator's config cannot be read: its metric sources are not known", mend)
        return
    if not settings.prometheus:
        mend = session.everywhere("get", "services", "--all-namespaces")
        yield error("endpoints", "config.prometheus names no metric source: no fleet can be judged", mend)
    for name, source in sorted(settings.prometheus.items()):
        what = f"config.prometheus.{name}"
        service = _service(source.url, found.namespace)
        if service is None:
            yield ok("endpoints", f"{what} is no Service; what it answers is each fleet's MetricsAvailable")
        else:
            name, namespace, certain = service
            yield await _behind(session, what, name, namespace, certain=certain)
    if settings.admission.mode == "Webhook":
        yield await _behind(session, "the webhook", settings.admission.service, found.namespace)


def _service(url: str, home: str) -> tuple[str, str, bool] | None:
    """(name, namespace, whether it must be one) of the Service that an address names; None: it leads elsewhere."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return None
    parts = host.split(".")
    if host in ("", "localhost") or ":" in host or (len(parts) > 2 and parts[2] != "svc"):
        return None
    return parts[0], parts[1] if len(parts) > 1 else home, len(parts) != 2


async def _behind(session: Session, what: str, service: str, namespace: str, *, certain: bool = True) -> Diagnosis:
    mend = session.everywhere("-n", namespace, "get", "services,endpointslices")
    try:
        spec = mapping((await session.api.get(SERVICES, namespace, service)).get("spec"))
    except NotFound:
        made, perhaps = (error, "") if certain else (warning, "; it is perhaps no Service")
        return made("endpoints", f"{what}: there is no Service {namespace}/{service}{perhaps}", mend)
    selector = f"kubernetes.io/service-name={service}"
    slices = await session.api.list(ENDPOINT_SLICES, namespace, label_selector=selector)
    count = sum(1 for body in slices for _ in ready_servers(body))
    if not count and spec.get("type") != "ExternalName":
        return error("endpoints", f"{what}: no endpoint of Service {namespace}/{service} is ready", mend)
    return ok("endpoints", f"{what}: {count} endpoints of Service {namespace}/{service} are ready")


async def echo(session: Session, *, everywhere: bool) -> AsyncIterator[Diagnosis]:
    """What admission knows of each assignment: the dry run of a patch of its policy, as the operator asks it."""
    targets = await session.policies(everywhere=everywhere, installed=False)
    asked = [target for target in targets if not target.policy.deleted and target.state != State()]
    silent = [finding for target in asked if (finding := await _echo(session, target)) is not None]
    for finding in silent:
        yield finding
    if asked and not silent:
        yield ok("echo", f"admission knows the newest assignment of {len(asked)} policies")


async def _echo(session: Session, target: Target) -> Diagnosis | None:
    policy, nonce = target.policy, secrets.token_hex(8)
    patch: JsonObject = {"metadata": {"annotations": {ECHO_NONCE: nonce, ECHO: None}}}
    try:
        body = await session.api.dry_run(POLICIES, policy.namespace, policy.name, patch)
    except Forbidden as denied:
        mend = session.everywhere("-n", policy.namespace, "auth", "can-i", "patch", "precisionpolicies")
        return warning("echo", f"{target.where}: admission cannot be asked: {denied}", mend)
    echoed = text(mapping(mapping(body.get("metadata")).get("annotations")).get(ECHO))
    head, _, number = echoed.rpartition("/")
    known = generation_text(number)
    if head != f"{nonce}/{policy.name}" or known is None:
        said = f"{target.where}: admission does not answer: it gives no new pod what its workload is assigned"
        return error("echo", said, await install_line(session))
    if known < target.state.generation:
        said = f"{target.where}: admission knows generation {known} of the assignment, not {target.state.generation}"
        return warning("echo", said, session.plugin("doctor", policy.name, namespace=policy.namespace))
    return None
