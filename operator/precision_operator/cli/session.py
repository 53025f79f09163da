"""One connection to a cluster, and what every verb reads over it."""

import argparse
import asyncio
import os
import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from precision_operator.api.assignment import parse_assignment
from precision_operator.api.policy import Policy, deleted_policy, parse_policy
from precision_operator.api.selector import Selector
from precision_operator.api.state import State
from precision_operator.api.summary import Summary, parse_summary
from precision_operator.api.wire import mapping, text
from precision_operator.cli.flags import meant
from precision_operator.cli.imports import prepare_imports
from precision_operator.errors import ConfigurationError, Forbidden, NotFound, OperatorError
from precision_operator.kube.port import ASSIGNMENTS, POLICIES, Cluster, JsonObject, Resource
from precision_operator.reasons import Reason

Answered = TypeVar("Answered")

READ_RETRIES = 5
"""An API server that has not read a CRD's objects yet puts off who asks for them by a second."""

_DEFAULT_KUBECONFIG = Path("~/.kube/config")
_SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class CommandRefused(OperatorError):
    """What was asked for cannot be done now; the message says why, and what to do instead."""

    reason = Reason.REFUSED


@dataclass(frozen=True, slots=True)
class Target:
    """A policy and its assignment, as they were just read."""

    policy: Policy
    """As far as the assignment kept it, where the policy itself was deleted."""
    status: Summary
    """What the operator shows of its last pass."""
    state: State
    """The operator's record, from the assignment; a new policy's where there is none."""
    body: JsonObject
    """Of the policy; of the assignment, where the policy was deleted."""

    @property
    def where(self) -> str:
        """``namespace/name``."""
        return f"{self.policy.namespace}/{self.policy.name}"

    @property
    def selector(self) -> Selector:
        """The one in force: what a rollback holds stays selected, whatever was edited since."""
        state = self.state
        return state.selector if state.holds and not state.selector.empty else self.policy.spec.selector


@dataclass(frozen=True, slots=True)
class Session:
    """A connection, and the namespace that is meant."""

    api: Cluster
    namespace: str
    flags: tuple[str, ...] = ()
    """``--context`` and ``--kubeconfig`` as they were given, for kubectl lines that do the same."""

    async def policies(self, *, everywhere: bool = False, installed: bool = True) -> tuple[Target, ...]:
        """All policies of the namespace, or of all namespaces, and what deleted ones have left behind.

        ``installed``: a CRD that is not there is an error.
        """
        where = "" if everywhere else self.namespace
        bodies = {_key(body): body for body in await self._listed(POLICIES, where, installed=installed)}
        records = {_key(body): body for body in await self._listed(ASSIGNMENTS, where, installed=installed)}
        return tuple(_target(bodies.get(key), records.get(key)) for key in sorted({*bodies, *records}))

    async def policy(self, name: str | None) -> Target:
        """The policy of this name, or what it has left behind; without a name, the only one of the namespace.

        Raises:
            CommandRefused: there is none, or there are several to choose from.
        """
        if name is not None:
            body, record = await self._read(POLICIES, name), await self._read(ASSIGNMENTS, name)
            if body is None and record is None:
                found = await self.policies()
                near = meant(name, [target.policy.name for target in found])
                there = self._choice(found)
                raise CommandRefused(f"no PrecisionPolicy {name} in namespace {self.namespace}; {there}{near}")
            return _target(body, record)
        found = await self.policies()
        if len(found) != 1:
            wanted = "name the PrecisionPolicy that is meant" if found else "expected a PrecisionPolicy"
            raise CommandRefused(f"{wanted}; in namespace {self.namespace} {self._choice(found)}")
        return found[0]

    def _choice(self, found: Sequence[Target]) -> str:
        if not found:
            return f"there is none; choose another with -n, or see all with `{self.plugin('get', everywhere=True)}`"
        return f"there are {', '.join(target.policy.name for target in found)}"

    async def _listed(self, resource: Resource, where: str, *, installed: bool) -> Sequence[JsonObject]:
        try:
            return await _readable(self.api.list(resource, where))
        except NotFound:
            if installed:
                raise
            return ()

    async def _read(self, resource: Resource, name: str) -> JsonObject | None:
        try:
            return await _readable(self.api.get(resource, self.namespace, name))
        except NotFound:
            return None

    def kubectl(self, *words: str) -> str:
        """A kubectl line that can be pasted into a shell."""
        return shlex.join(("kubectl", *self.flags, "-n", self.namespace, *words))

    def everywhere(self, *words: str) -> str:
        """The same for what has no namespace."""
        return shlex.join(("kubectl", *self.flags, *words))

    def plugin(self, *words: str, namespace: str = "", everywhere: bool = False) -> str:
        """A line for a verb of ours; ``namespace``: another than the one that is meant; ``everywhere``: of all of them."""
        where = ("-A",) if everywhere else ("-n", namespace or self.namespace)
        return shlex.join(("kubectl", "precision", *words, *where, *self.flags))


def _key(body: JsonObject) -> tuple[str, str]:
    metadata = mapping(body.get("metadata"))
    return text(metadata.get("namespace")), text(metadata.get("name"))


def _target(body: JsonObject | None, record: JsonObject | None) -> Target:
    state = parse_assignment(record) if record is not None else State()
    if body is not None:
        return Target(parse_policy(body), parse_summary(body.get("status")), state, body)
    from precision_operator.core.status.summary import recorded

    left = record or {}
    namespace, name = _key(left)
    return Target(deleted_policy(namespace, name, state), recorded(state), state, left)


async def _readable(call: Awaitable[Answered]) -> Answered:
    try:
        return await call
    except Forbidden as error:
        raise CommandRefused(
            f"{error}; ask for `get` and `list` on precisionpolicies and precisionassignments there"
        ) from error


ClusterVerb = Callable[[Session, argparse.Namespace], Awaitable[Answered]]


def connected(arguments: argparse.Namespace, verb: ClusterVerb[Answered]) -> Answered:
    """Run a verb over a connection of its own."""
    return asyncio.run(_connected(arguments, verb))


async def _connected(arguments: argparse.Namespace, verb: ClusterVerb[Answered]) -> Answered:
    prepare_imports()
    from precision_operator.kube.access import Access
    from precision_operator.kube.client import KubeClient

    kubeconfig = _kubeconfig(arguments.kubeconfig)
    namespace = arguments.namespace or _namespace(kubeconfig, arguments.context)
    access = Access(kubeconfig, arguments.context)
    client = await KubeClient.connect(access, program="kubectl-precision", read_retries=READ_RETRIES)
    try:
        return await verb(Session(client, namespace, given_flags(arguments)), arguments)
    finally:
        await client.close()


def given_flags(arguments: argparse.Namespace) -> tuple[str, ...]:
    """``--context`` and ``--kubeconfig``, for kubectl lines that do the same."""
    given = {"--context": arguments.context, "--kubeconfig": arguments.kubeconfig}
    return tuple(word for flag, value in given.items() if value for word in (flag, str(value)))


def _kubeconfig(given: Path | None) -> Path | None:
    """The file or files to read, as kubectl chooses them; None: we are in a pod."""
    named = given or os.environ.get("KUBECONFIG") or _DEFAULT_KUBECONFIG
    files = [Path(part).expanduser() for part in str(named).split(os.pathsep) if part]
    if any(file.is_file() for file in files):
        return Path(os.pathsep.join(map(str, files)))
    if given is None and _SERVICE_ACCOUNT_NAMESPACE.exists():
        return None
    raise ConfigurationError(f"no kubeconfig at {named}: pass --kubeconfig, or set KUBECONFIG")


def _namespace(kubeconfig: Path | None, context: str | None) -> str:
    """The context's namespace; in a pod, the pod's."""
    if kubeconfig is None:
        return _SERVICE_ACCOUNT_NAMESPACE.read_text().strip()
    import kubernetes.aio.config as kube_config

    try:
        contexts, current = kube_config.list_kube_config_contexts(str(kubeconfig))  # type: ignore[no-untyped-call]
    except kube_config.ConfigException as error:
        raise ConfigurationError(f"{kubeconfig}: {error}; choose one with `kubectl config use-context`") from error
    chosen = next((entry for entry in contexts if entry["name"] == context), None) if context else current
    if chosen is None:
        known = ", ".join(sorted(entry["name"] for entry in contexts))
        raise ConfigurationError(f"{kubeconfig} has no context {context}; it has {known}")
    return text(mapping(mapping(chosen).get("context")).get("namespace")) or "default"
