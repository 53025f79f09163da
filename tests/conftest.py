"""What every level of test shares."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.support.preparation import prepare

# A busy machine is no finding: examples are judged by what they show, never by how long they took. Continuous integration
# repeats the same examples on the same code, so that a red run is red for a reason; elsewhere each run looks further.
settings.register_profile(
    "project",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
    print_blob=True,
)
settings.load_profile("project")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Tests that need minutes of preparation run only where they are asked for; records are written only there too."""
    parser.addoption(
        "--older-minor",
        action="store_true",
        help="run also what is marked older_minor: it compiles an older Kubernetes, once a machine",
    )
    parser.addoption(
        "--cert-manager",
        action="store_true",
        help="run also what is marked cert_manager: it compiles cert-manager, once a machine",
    )
    parser.addoption(
        "--record-policies",
        action="store_true",
        help="write the policies that tests/support/recorded_policies.py reads: tests/cluster/test_kstatus.py has them",
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """No test's own time is spent on what is prepared once a machine."""
    if not session.config.option.collectonly:
        prepare(item.nodeid for item in session.items)
