"""A reason's next step, with its commands whole."""

import re
from collections.abc import Callable


def whole(step: str, *, name: str, missing: str, kubectl: Callable[..., str], plugin: Callable[..., str]) -> str:
    """The step with the policy's name, and its commands as they can be pasted.

    Args:
        step: of ``Reason.steps``; a command of it begins with ``!``.
        name: of the policy.
        missing: the prerequisites that are not acknowledged.
        kubectl: words → a command of kubectl.
        plugin: words → a command of its plugin.
    """

    def command(found: re.Match[str]) -> str:
        first, *rest = found[1].split()
        return f"`{kubectl(*rest) if first == 'kubectl' else plugin(first, *rest)}`"

    return re.sub(r"`!([^`]+)`", command, step.replace("{name}", name).replace("{missing}", missing))
