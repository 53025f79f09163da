"""What ``doctor`` looks at in the cluster: CRDs, admission, rights, Lease, clock, alert rules, and the last drill."""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from importlib import resources

import yaml

from precision_operator import __version__
from precision_operator.api.codec import decode
from precision_operator.api.wire import mapping, parse_time, sequence, text
from precision_operator.cli.findings import Diagnosis, error, ok, warning
from precision_operator.cli.output import age
from precision_operator.cli.release import PART_OF
from precision_operator.cli.session import CommandRefused, Session
from precision_operator.cli.write import user_of
from precision_operator.core.rollback.drill import due
from precision_operator.errors import Forbidden, KubeError, NotFound
from precision_operator.kube.port import (
    ASSIGNMENTS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    INCIDENTS,
    LEASES,
    PODS,
    POLICIES,
    SELF_SUBJECT_REVIEWS,
    JsonObject,
    Resource,
)
from precision_operator.settings import LeaseSettings

INSTALL = "helm upgrade --install precision-operator helm/precision-operator -n {namespace} --reset-then-reuse-values"
ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews")
PROMETHEUS_RULES = Resource("monitoring.coreos.com", "v1", "prometheusrules")
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles")
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
_ADMISSION = "admissionregistration.k8s.io"
_VALIDATING = ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
_MUTATING = ("mutatingadmissionpolicies", "mutatingadmissionpolicybindings", "mutatingwebhookconfigurations")
_NEEDED = ("precision-assign.", "precision-echo.", "precision-webhook.")
CONFIG_FILE = "config.yaml"
"""Key of the operator's ConfigMap (helm/precision-operator/templates/configmap.yaml)."""
_Check = Callable[[Session], AsyncIterator[Diagnosis]]
_SKEW_SECONDS = 5.0
_STALE_LEASES = 3
"""Durations after which nobody leads, whatever the clocks say."""


async def examine_installation(session: Session, *, everywhere: bool) -> list[Diagnosis]:
    """Each check of the cluster; what may not be read is a warning. ``everywhere``: drills of all namespaces."""
    found: list[Diagnosis] = []
    checks: Mapping[str, _Check] = {**_CHECKS, "drill": partial(_drill, everywhere=everywhere)}
    for name, check in checks.items():
        try:
            async for finding in check(session):
                found.append(finding)  # one by one: those before a refusal count
        except (Forbidden, CommandRefused) as denied:
            found.append(warning(name, f"cannot be looked at: {denied}", session.everywhere("auth", "can-i", "--list")))
        except KubeError as failed:
            found.append(error(name, f"no answer: {failed}", session.everywhere("get", "--raw", "/readyz?verbose")))
    return found


async def _listed(session: Session, group: str, plural: str) -> Sequence[JsonObject]:
    """In whichever version the API server has them."""
    for version in ("v1", "v1beta1"):
        try:
            return await session.api.list(Resource(group, version, plural), "")
        except NotFound:
            continue
    return ()


async def _operator(session: Session) -> tuple[str, JsonObject | None]:
    """(namespace, Deployment) of the operator."""
    found = await session.api.list(DEPLOYMENTS, "", label_selector=PART_OF)
    return (_meta(found[0], "namespace"), found[0]) if found else ("precision-system", None)


def _meta(body: JsonObject, field: str) -> str:
    return text(mapping(body.get("metadata")).get(field))


async def _install(session: Session) -> str:
    return INSTALL.format(namespace=(await _operator(session))[0])


async def _crds(session: Session) -> AsyncIterator[Diagnosis]:
    missing = [kind.plural for kind in (POLICIES, ASSIGNMENTS, INCIDENTS) if not await session.api.serves(kind)]
    if missing:
        yield error("crds", f"not installed: {', '.join(missing)}", await _install(session))
        return
    labels = mapping(mapping((await session.api.get(CRDS, "", f"{POLICIES.plural}.{POLICIES.group}")).get("metadata")))
    version = text(mapping(labels.get("labels")).get("app.kubernetes.io/version"))
    if version and version != __version__:
        yield warning("crds", f"of version {version}; this plugin is {__version__}", await _install(session))
    else:
        yield ok("crds", f"{POLICIES.group}/{POLICIES.version} {version}".strip())


async def _running(session: Session) -> AsyncIterator[Diagnosis]:
    namespace, body = await _operator(session)
    if body is None:
        yield error("operator", "no Deployment of the chart is installed", await _install(session))
        return
    ready, wanted = mapping(body.get("status")).get("readyReplicas") or 0, mapping(body.get("spec")).get("replicas")
    made = error if not ready else ok if ready == wanted else warning
    mend = () if made is ok else (session.everywhere("-n", namespace, "get", "pods", "-l", PART_OF),)
    yield made("operator", f"{namespace}/{_meta(body, 'name')}: {ready} of {wanted} replicas are ready", *mend)


async def _admission(session: Session) -> AsyncIterator[Diagnosis]:
    installed = {
        plural: {_meta(body, "name") for body in await _listed(session, _ADMISSION, plural)}
        for plural in (*_VALIDATING, *_MUTATING)
    }
    webhook = any(name.startswith("precision-webhook.") for name in installed[_MUTATING[2]])
    names = set().union(*installed.values())
    missing = sorted(
        ours for plural, ours in _shipped() if ours not in installed[plural] and not (webhook and plural in _MUTATING)
    )
    if not missing:
        yield ok(
            "admission", f"by {'webhook' if webhook else 'policy'}; {len(names)} objects of admission are installed"
        )
    needed = [name for name in missing if name.startswith(_NEEDED)]
    if missing:
        made = error if needed else warning
        text_ = f"not installed: {', '.join(dict.fromkeys(needed or missing))}"
        yield made("admission", text_, await _install(session))


def _shipped() -> list[tuple[str, str]]:
    """(plural, name) of each policy and binding that the chart installs."""
    folder = resources.files("precision_operator.admission") / "shipped"
    files = [file for file in folder.iterdir() if file.name.endswith(".yaml")]
    bodies = [body for file in files for body in yaml.safe_load_all(file.read_text()) if body]
    kinds = [(text(body["kind"]).lower(), text(body["metadata"]["name"])) for body in bodies]
    return [(kind.removesuffix("y") + "ies" if kind.endswith("y") else f"{kind}s", name) for kind, name in kinds]


async def _rights(session: Session) -> AsyncIterator[Diagnosis]:
    review: JsonObject = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    wanted = [(verb, kind) for kind in (POLICIES, ASSIGNMENTS) for verb in ("get", "list", "watch")]
    lacks = []
    for verb, kind in (*wanted, ("patch", POLICIES), ("list", DEPLOYMENTS), ("list", PODS)):
        asked: JsonObject = {"verb": verb, "group": kind.group, "resource": kind.plural, "namespace": session.namespace}
        answer = await session.api.create(ACCESS_REVIEWS, "", {**review, "spec": {"resourceAttributes": asked}})
        if not mapping(answer.get("status")).get("allowed"):
            lacks.append(f"{verb} {kind.plural}")
    if lacks:
        mend = session.kubectl(
            "create", "rolebinding", "precision-edit", "--clusterrole=edit", f"--user={await user_of(session)}"
        )
        yield warning("rights", f"you lack {', '.join(lacks)} in {session.namespace}; an admin gives them", mend)
    else:
        yield ok("rights", f"you may look at fleets in {session.namespace}, and command them")
    roles = [*await session.api.list(CLUSTER_ROLES, ""), *await session.api.list(ROLES, "")]
    if not any(_writes_assignments(role) for role in roles):
        yield error("rights", "no role may write assignments: the operator has none", await _install(session))


def _writes_assignments(role: JsonObject) -> bool:
    rules = [mapping(rule) for rule in sequence(role.get("rules"))]
    return any(
        ASSIGNMENTS.plural in sequence(rule.get("resources")) and "update" in sequence(rule.get("verbs"))
        for rule in rules
    )


async def _lease_settings(session: Session) -> LeaseSettings:
    """As the operator's config has them; the default ones where that cannot be read: it is no right of everybody."""
    namespace, body = await _operator(session)
    spec = mapping(mapping(mapping(mapping(body or {}).get("spec")).get("template")).get("spec"))
    mounted = [text(mapping(mapping(v).get("configMap")).get("name")) for v in sequence(spec.get("volumes"))]
    for name in filter(None, mounted):
        try:
            config = mapping((await session.api.get(CONFIG_MAPS, namespace, name)).get("data")).get(CONFIG_FILE)
            if config is not None:
                return decode(mapping(yaml.safe_load(text(config))).get("lease"), LeaseSettings())
        except (Forbidden, NotFound, yaml.YAMLError):
            continue
    return LeaseSettings()


async def _lease(session: Session) -> AsyncIterator[Diagnosis]:
    namespace, _ = await _operator(session)
    settings = await _lease_settings(session)
    show = session.everywhere("-n", namespace, "logs", "-l", PART_OF, "--tail=50")
    leases = [body for body in await session.api.list(LEASES, "") if _meta(body, "name") == settings.name]
    renewed = {parse_time(text(mapping(b.get("spec")).get("renewTime"))) or 0.0: b for b in leases}
    if not renewed:
        yield error("lease", f"no Lease {settings.name}: no operator has ever led", show)
        return
    newest = max(renewed)
    spec, now = mapping(renewed[newest].get("spec")), await _server_time(session) or time.time()
    holder, seconds = text(spec.get("holderIdentity")), float(str(spec.get("leaseDurationSeconds") or 0))
    if not holder or now - newest > _STALE_LEASES * max(seconds, settings.duration_seconds):
        yield error("lease", f"nobody leads; renewed last {age(newest, now=now)} ago", show)
    else:
        yield ok("lease", f"held by {holder}, renewed {age(newest, now=now)} ago")


async def _server_time(session: Session) -> float | None:
    """The API server's clock, by the review that it makes of who asks."""
    review: JsonObject = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        return parse_time(_meta(await session.api.create(SELF_SUBJECT_REVIEWS, "", review), "creationTimestamp"))
    except KubeError:
        return None


async def _clock(session: Session) -> AsyncIterator[Diagnosis]:
    theirs = await _server_time(session)
    if theirs is None:
        yield warning("clock", "the API server does not say what time it is")
        return
    skew = time.time() - theirs
    if -_SKEW_SECONDS < skew < _SKEW_SECONDS:
        yield ok("clock", "this machine's and the API server's agree")
    else:
        yield warning(
            "clock", f"this machine's differs from the API server's by {skew:+.0f} s", "timedatectl set-ntp true"
        )


async def _rules(session: Session) -> AsyncIterator[Diagnosis]:
    if not await session.api.serves(PROMETHEUS_RULES):
        yield warning("alerts", "this cluster has no PrometheusRule: load the chart's rules into Prometheus by hand")
        return
    if await session.api.list(PROMETHEUS_RULES, "", label_selector=PART_OF):
        yield ok("alerts", "a PrometheusRule of the chart is installed")
    else:
        mend = f"{await _install(session)} --set prometheusRule.enabled=true"
        yield warning("alerts", "no PrometheusRule of the chart: nobody is alerted where the operator is away", mend)


async def _drill(session: Session, *, everywhere: bool) -> AsyncIterator[Diagnosis]:
    targets = await session.policies(everywhere=everywhere, installed=False)
    late = [(target, why) for target in targets if (why := due(target.state, time.time()))]
    for target, why in late:
        yield warning(
            "drill",
            f"{target.where}: {why}",
            session.plugin("drill", target.policy.name, namespace=target.policy.namespace),
        )
    passed = [t.state.last_drill.passed_at for t in targets if t.state.last_drill and t.state.last_drill.passed_at]
    if not late:
        when = f"the last that passed was {age(max(passed))} ago" if passed else "no fleet is Healthy yet"
        yield ok("drill", f"none is overdue in {'any namespace' if everywhere else session.namespace}: {when}")


_CHECKS: Mapping[str, _Check] = {
    "crds": _crds,
    "operator": _running,
    "admission": _admission,
    "rights": _rights,
    "lease": _lease,
    "clock": _clock,
    "alerts": _rules,
}
