"""One version: pages that show a release name that of the code, and the changelog has it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.errors import LabError
from lab.release.make import require_changes
from precision_operator import __version__

ROOT = Path(__file__).parents[2]
PAGES = {
    "docs/release.md": r"path/to/(\d+\.\d+\.\d+)\b|-(\d+\.\d+\.\d+)(?:\.oci|-OS)|REGISTRY/[a-z-]+:(\d+\.\d+\.\d+)\b",
    "docs/install.md": r"RELEASE=(\d+\.\d+\.\d+)\b|--version (\d+\.\d+\.\d+)\b",
    "docs/reference/cli.md": r"kubectl-precision-(\d+\.\d+\.\d+)-",
}
"""Page → where it names a version of this project, as one of the groups; other versions stand there too."""


@pytest.mark.parametrize("page", PAGES)
def test_a_page_that_shows_a_release_names_the_version_of_the_code(page: str) -> None:
    named = {version for groups in re.findall(PAGES[page], (ROOT / page).read_text()) for version in _some(groups)}
    assert named == {__version__}


def _some(groups: str | tuple[str, ...]) -> list[str]:
    return [group for group in ((groups,) if isinstance(groups, str) else groups) if group]


def test_the_changelog_has_a_section_of_the_version_of_the_code_and_it_is_the_newest() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    require_changes(__version__, text)
    versions = re.findall(r"^## \[(\d.*?)\]", text, re.MULTILINE)
    assert versions[0] == __version__


@pytest.mark.parametrize("text", ["## [Unreleased]\n\n- more\n", "## [0.10.0] - 2026-01-01\n", "see ## [0.1.0]\n"])
def test_a_release_of_a_version_that_the_changelog_does_not_have_is_refused(text: str) -> None:
    with pytest.raises(LabError, match=r"a section ## \[0\.1\.0\] in CHANGELOG\.md"):
        require_changes("0.1.0", text)
