"""A reason's next step, with its commands whole."""

import re
from collections.abc import Callable

OF_FLEET = "{of}"
"""In a command of a step: its pods, by the policy's selector, or all of the namespace."""


def whole(
    step: str,
    *,
    name: str,
    missing: str,
    kubectl: Callable[..., str],
    plugin: Callable[..., str],
    selector: str = "",
) -> str:
    """The step with the policy's name, and its commands as they can be pasted.

    Args:
        step: of ``Reason.steps``; a command of it begins with ``!``.
        name: of the policy.
        missing: the prerequisites that are not acknowledged.
        kubectl: words → a command of kubectl.
        plugin: words → a command of its plugin.
        selector: of the fleet's pods; empty: not known here.
    """
    of_fleet = ("-l", selector) if selector else ()

    def command(found: re.Match[str]) -> str:
        first, *words = found[1].split()
        if words[:1] == ["logs"] and not selector:
            words = ["get", "pods"]  # whose logs they are is not known
        rest = [part for word in words for part in (of_fleet if word == OF_FLEET else (word,))]
        return f"`{kubectl(*rest) if first == 'kubectl' else plugin(first, *rest)}`"

    return re.sub(r"`!([^`]+)`", command, step.replace("{name}", name).replace("{missing}", missing))
