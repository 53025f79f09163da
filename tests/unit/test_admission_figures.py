"""What `make admission` counts in the tests' report."""

from __future__ import annotations

from pathlib import Path

from lab.admission import figures


def case(name: str, *, failed: bool = False, **properties: object) -> str:
    kept = "".join(f'<property name="{key}" value="{value}"/>' for key, value in properties.items())
    return f'<testcase name="{name}"><properties>{kept}</properties>{"<failure/>" * failed}</testcase>'


def test_pods_are_counted_by_enforcer_and_a_failed_hold_is_not_kept(tmp_path: Path) -> None:
    cases = [
        case("a", enforcer="policy", pods=310, differences=0, denied=0),
        case("b", enforcer="policy", pods=12, differences=1, denied=1, failed=True),
        case("c", enforcer="webhook", pods=310, differences=0, denied=0),
        case("d", hold="deleted"),
        case("e", hold="restored", failed=True),
        case("f", older_minor="v1.33.13"),
        case("g"),
    ]
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    found = figures(report)
    assert found["corpus"] == {
        "pods": 310,
        "function": 310,
        "policy": 310,
        "webhook": 310,
        "differences": 1,
        "denied": 1,
    }
    assert found["older_minor"] == {"version": "v1.33.13", "run": True}
    assert found["holds"] == {"scenarios": 2, "kept": 1}


def test_an_older_minor_counts_as_run_only_where_all_of_it_passed(tmp_path: Path) -> None:
    def of(*cases: str) -> object:
        report = tmp_path / "report.xml"
        report.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
        return figures(report)["older_minor"]

    passed, failed = case("a", older_minor="v1.33.13"), case("b", older_minor="v1.33.13", failed=True)
    assert of(passed, failed) == {"version": "v1.33.13", "run": False}
    assert of(case("c")) == {"version": None, "run": False}
