"""What ``doctor`` looks at in the cluster: CRDs, admission, rights, clock, alert rules, the last drill, and the operator."""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial

from precision_operator import __version__
from precision_operator.admission.objects import GROUP, PLURALS, VERSIONS, shipped
from precision_operator.api.wire import mapping, text
from precision_operator.cli.examine_operator import echo, endpoints, lease, may, rights, running, server_time
from precision_operator.cli.findings import Diagnosis, error, ok, warning
from precision_operator.cli.installed import install_line, meta
from precision_operator.cli.output import age
from precision_operator.cli.release import CRDS, PART_OF
from precision_operator.cli.session import CommandRefused, Session
from precision_operator.cli.write import user_of
from precision_operator.core.rollback.drill import due
from precision_operator.errors import Forbidden, KubeError, NotFound
from precision_operator.kube.port import ASSIGNMENTS, DEPLOYMENTS, INCIDENTS, PODS, POLICIES, JsonObject, Resource

PROMETHEUS_RULES = Resource("monitoring.coreos.com", "v1", "prometheusrules")
_Check = Callable[[Session], AsyncIterator[Diagnosis]]
_SKEW_SECONDS = 5.0


async def examine_installation(session: Session, *, everywhere: bool) -> list[Diagnosis]:
    """Each check of the cluster; what may not be read is a warning. ``everywhere``: drills of all namespaces."""
    found: list[Diagnosis] = []
    fleets = {name: partial(check, everywhere=everywhere) for name, check in (("echo", echo), ("drill", _drill))}
    checks: Mapping[str, _Check] = {**_CHECKS, **fleets}
    for name, check in checks.items():
        try:
            async for finding in check(session):
                found.append(finding)  # one by one: those before a refusal count
        except (Forbidden, CommandRefused) as denied:
            found.append(warning(name, f"cannot be looked at: {denied}", session.everywhere("auth", "can-i", "--list")))
        except KubeError as failed:
            found.append(error(name, f"no answer: {failed}", session.everywhere("get", "--raw", "/readyz?verbose")))
    return found


async def _listed(session: Session, plural: str) -> Sequence[JsonObject]:
    """In whichever version the API server has them."""
    for version in VERSIONS:
        try:
            return await session.api.list(Resource(GROUP, version, plural), "")
        except NotFound:
            continue
    return ()


async def _crds(session: Session) -> AsyncIterator[Diagnosis]:
    missing = [kind.plural for kind in (POLICIES, ASSIGNMENTS, INCIDENTS) if not await session.api.serves(kind)]
    if missing:
        yield error("crds", f"not installed: {', '.join(missing)}", await install_line(session))
        return
    labels = mapping(mapping((await session.api.get(CRDS, "", POLICIES.qualified)).get("metadata")))
    version = text(mapping(labels.get("labels")).get("app.kubernetes.io/version"))
    if version and version != __version__:
        yield warning("crds", f"of version {version}; this plugin is {__version__}", await install_line(session))
    else:
        yield ok("crds", f"{POLICIES.api_version} {version}".strip())


async def _admission(session: Session) -> AsyncIterator[Diagnosis]:
    installed = {
        kind: {meta(body, "name") for body in await _listed(session, plural)} for kind, plural in PLURALS.items()
    }
    webhook = any(name.startswith("precision-webhook.") for name in installed["MutatingWebhookConfiguration"])
    names = set().union(*installed.values())
    lacking = [ours for ours in shipped(webhook=webhook) if ours.name not in installed[ours.kind]]
    if not lacking:
        how = "webhook" if webhook else "policy"
        yield ok("admission", f"by {how}; {len(names)} objects of admission are installed")
        return
    needed = [ours for ours in lacking if ours.needed]
    made = error if needed else warning
    missing = sorted({ours.name for ours in needed or lacking})
    yield made("admission", f"not installed: {', '.join(missing)}", await install_line(session))


async def _rights(session: Session) -> AsyncIterator[Diagnosis]:
    wanted = [(verb, kind) for kind in (POLICIES, ASSIGNMENTS) for verb in ("get", "list", "watch")]
    lacks = []
    for verb, kind in (*wanted, ("patch", POLICIES), ("list", DEPLOYMENTS), ("list", PODS)):
        if not await may(session, verb, kind.group, kind.plural, namespace=session.namespace):
            lacks.append(f"{verb} {kind.plural}")
    if lacks:
        mend = session.kubectl(
            "create", "rolebinding", "precision-edit", "--clusterrole=edit", f"--user={await user_of(session)}"
        )
        yield warning("rights", f"you lack {', '.join(lacks)} in {session.namespace}; an admin gives them", mend)
    else:
        yield ok("rights", f"you may look at fleets in {session.namespace}, and command them")


async def _clock(session: Session) -> AsyncIterator[Diagnosis]:
    theirs = await server_time(session)
    if theirs is None:
        mend = session.everywhere("auth", "whoami", "-o", "yaml")
        yield warning("clock", "the API server does not say what time it is", mend)
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
        mend = session.everywhere("api-resources", f"--api-group={PROMETHEUS_RULES.group}")
        said = "this cluster has no PrometheusRule: Prometheus must load manifests/monitoring/alerts.yaml by itself"
        yield warning("alerts", said, mend)
        return
    if await session.api.list(PROMETHEUS_RULES, "", label_selector=PART_OF):
        yield ok("alerts", "a PrometheusRule of the chart is installed")
    else:
        mend = await install_line(session, "prometheusRule.enabled=true")
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
    "operator": running,
    "admission": _admission,
    "rights": _rights,
    "operator rights": rights,
    "lease": lease,
    "endpoints": endpoints,
    "clock": _clock,
    "alerts": _rules,
}
