"""What the words of a refusal say: which admission policies denied a request, and what they tell a person.

The API server has no field for either. Nothing else reads the text of its messages.
"""

import re

_POLICY = re.compile("ValidatingAdmissionPolicy '([^']*)")
_SAID = "denied request: "


def denying_policies(error: BaseException | str) -> tuple[str, ...]:
    """Names of the ValidatingAdmissionPolicies that denied the request. No name of an object can look like one."""
    return tuple(_POLICY.findall(str(error)))


def denial(error: BaseException) -> str:
    """What an admission policy says to a person; the whole message where none denied it."""
    message = str(error)
    return message.rpartition(_SAID)[2] or message
