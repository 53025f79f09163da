"""mkdocs' hook: pages link to the repository as GitHub wants it, and the site has what they link to.

A page in docs/ may link to ``../CONTRIBUTING.md`` or ``../examples/own_model.py``. Such a file becomes part of the site
below ``repository/``, a page as a page, anything else as it is, and the links follow. So a link works in a checkout, on
the repository's host and in the site, and no host is named.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from lab import paths

PAGES = "docs"
ELSEWHERE = "repository"
ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""What the navigation names."""

_LINK = re.compile(r"(?<=\]\()[^()\s#]+")


def on_files(files: Files, /, *, config: MkDocsConfig) -> Files:
    """Add the files outside of docs/ that pages link to, and those that these link to."""
    waiting = [*ALWAYS, *(path for file in files.documentation_pages() for path in _linked(f"{PAGES}/{file.src_uri}"))]
    added: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in added or path.startswith(f"{PAGES}/"):
            continue
        added.add(path)
        files.append(
            File.generated(
                config, in_site(path), abs_src_path=str(paths.ROOT / path), inclusion=InclusionLevel.NOT_IN_NAV
            )
        )
        waiting += _linked(path)
    return files


def on_page_markdown(markdown: str, /, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let the page's links say where the site has what they link to."""
    return with_links(markdown, in_repository(page.file.src_uri), lambda path: (paths.ROOT / path).is_file())


def with_links(markdown: str, source: str, exists: Callable[[str], bool]) -> str:
    """The text of the repository's file ``source``, its links to existing files as the site has them."""
    folder = posixpath.dirname(source)

    def link(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, found[0]))
        return posixpath.relpath(in_site(path), posixpath.dirname(in_site(source))) if exists(path) else found[0]

    return _LINK.sub(link, markdown)


def in_site(path: str) -> str:
    """Where the site has a file of the repository."""
    return path.removeprefix(f"{PAGES}/") if path.startswith(f"{PAGES}/") else f"{ELSEWHERE}/{path}"


def in_repository(uri: str) -> str:
    """Where the repository has a file of the site."""
    return uri.removeprefix(f"{ELSEWHERE}/") if uri.startswith(f"{ELSEWHERE}/") else f"{PAGES}/{uri}"


def _linked(path: str) -> Iterator[str]:
    """The files of the repository that this one links to, if it is a page."""
    if path.endswith(".md"):
        for target in _LINK.findall((paths.ROOT / path).read_text()):
            linked = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            if (paths.ROOT / linked).is_file():
                yield linked
