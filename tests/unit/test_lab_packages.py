"""The lab says which packages it installs on a machine."""

from pathlib import Path

import pytest

from lab.setup.prerequisites import BROWSER, CONTROL_PLANE, NODE

ROOT = Path(__file__).parents[2]
LISTED = (ROOT / "lab" / "README.md").read_text().split("## Debian's packages")[1].split("\n## ")[0]


@pytest.mark.parametrize("package", sorted({program.package for program in (*CONTROL_PLANE, *NODE, BROWSER)}))
def test_every_package_that_the_lab_installs_stands_in_its_page(package: str) -> None:
    assert f"`{package}`" in LISTED


def test_a_package_that_is_installed_before_there_is_a_lab_stands_there_too() -> None:
    setup = (ROOT / "lab" / "setup" / "bootstrap.sh").read_text()
    assert "apt-get install -y -q python3-venv" in setup
    assert "`python3-venv`" in LISTED
