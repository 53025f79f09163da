"""What is read of the words of a refusal."""

import pytest

from precision_operator.errors import Forbidden
from precision_operator.kube.denials import denial, denying_policies

DENIED = (
    "patch pods: 403 Invalid: pods \"x\" is forbidden: ValidatingAdmissionPolicy 'precision-fence.genesis.ai' with binding "
    "'precision-fence.genesis.ai' denied request: annotate no more than the request"
)


@pytest.mark.parametrize(("message", "names"), [(DENIED, ("precision-fence.genesis.ai",)), ("no right to patch", ())])
def test_the_policies_that_denied_a_request_are_named(message: str, names: tuple[str, ...]) -> None:
    assert denying_policies(Forbidden(message)) == names


@pytest.mark.parametrize(
    ("message", "said"), [(DENIED, "annotate no more than the request"), ("no right to patch", "no right to patch")]
)
def test_a_person_reads_what_the_policy_says_or_the_whole_refusal(message: str, said: str) -> None:
    assert denial(Forbidden(message)) == said
