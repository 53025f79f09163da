"""What a person reads where the API server gives no answer, or not the one that was asked for."""

import shlex
from collections.abc import Sequence

from precision_operator.errors import Forbidden, KubeError, NotFound, TooManyRequests, Unavailable
from precision_operator.kube.port import POLICIES

_UNAUTHORIZED = 401


def in_words(error: KubeError, flags: Sequence[str]) -> str:
    """One sentence, with the next step; ``flags`` lead kubectl to the same cluster."""

    def kubectl(*words: str) -> str:
        return f"`{shlex.join(('kubectl', *flags, *words))}`"

    match error:
        case Unavailable(status=0):
            cause = error.__cause__
            host = getattr(cause, "host", "")
            where = f" at {host}:{getattr(cause, 'port', '')}" if host else ""
            said = getattr(cause, "strerror", None) or getattr(cause, "certificate_error", None) or "no answer in time"
            return (
                f"the API server{where} cannot be reached ({said}): see whether kubectl can, {kubectl('cluster-info')}"
            )
        case KubeError(status=status) if status == _UNAUTHORIZED:
            return (
                f"the API server does not accept the credentials (expired?): sign in again, {kubectl('auth', 'whoami')}"
            )
        case NotFound() if POLICIES.group in str(error):
            crds = kubectl("get", "crd", POLICIES.qualified)
            return (
                f"this cluster does not serve {POLICIES.group}: install the chart, or choose another --context ({crds})"
            )
        case Unavailable() | TooManyRequests():
            ready = kubectl("get", "--raw", "/readyz?verbose")
            return f"{error}; try again in a moment, and see how the API server is: {ready}"
        case Forbidden():
            return f"{error}; to see what you may do: {kubectl('auth', 'can-i', '--list')}"
        case _:
            return str(error)
