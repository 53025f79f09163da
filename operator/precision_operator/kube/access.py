"""How we reach the API server: the pod's service account, or a kubeconfig. Read for our client and for kopf's."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import kubernetes.aio.config as kube_config
from kubernetes.aio.client import Configuration

from precision_operator.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Access:
    """Where credentials come from. The default is the pod's service account."""

    kubeconfig: Path | None = None
    """A kubeconfig file; None means in-cluster."""
    context: str | None = None
    """A context of that file; None means its current one."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client that is not ours (kopf) needs to connect."""

    server: str
    ca_file: str | None
    insecure: bool
    certificate_file: str | None
    key_file: str | None
    token: str | None
    proxy: str | None


async def load_configuration(access: Access) -> Configuration:
    """The library's configuration for this access.

    In a cluster, the token file is read again once a minute (bound tokens are rotated by the kubelet).

    Raises:
        ConfigurationError: not in a cluster, no such file or context, or a broken kubeconfig.
    """
    configuration = Configuration()
    configuration.retries = None
    try:
        if access.kubeconfig is None:
            kube_config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            await kube_config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=str(access.kubeconfig),
                context=access.context,
                client_configuration=configuration,
                persist_config=False,
            )
    except (kube_config.ConfigException, OSError) as error:
        where = access.kubeconfig or "service account"
        raise ConfigurationError(
            f"{where}: cannot be used to reach Kubernetes: {error}; run in a pod, or pass --kubeconfig"
        ) from error
    return configuration


async def authorization(configuration: Configuration) -> Mapping[str, str]:
    """The Authorization header of the next request; empty where a client certificate or nothing is used."""
    token = await configuration.get_api_key_with_prefix("BearerToken")
    if token is None:
        return {}
    scheme, _, value = token.strip().partition(" ")
    return {"Authorization": f"{scheme.title()} {value.strip()}" if value else f"Bearer {scheme}"}


async def credentials(access: Access) -> Credentials:
    """Credentials as they stand now; called again whenever the server refuses the ones given before."""
    configuration = await load_configuration(access)
    header = (await authorization(configuration)).get("Authorization", "")
    return Credentials(
        server=str(configuration.host),
        ca_file=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        certificate_file=configuration.cert_file,
        key_file=configuration.key_file,
        token=header.partition(" ")[2] or None,
        proxy=configuration.proxy,
    )
