"""Errors that a person can act on: what was expected, what was found, what to do next."""

from __future__ import annotations


class LabError(Exception):
    """Something the laboratory needs is not as it must be."""

    def __init__(self, expected: str, found: str, next_step: str) -> None:
        self.expected = expected
        self.found = found
        self.next_step = next_step
        super().__init__(f"expected {expected}\n   found {found}\n    next {next_step}")


class DeadlineExceeded(LabError):
    """A condition did not come true in its time."""


class CommandFailed(LabError):
    """A program that had to succeed did not; carries its output for the reader."""

    def __init__(self, command: str, code: int, output: str) -> None:
        self.command = command
        self.code = code
        self.output = output
        super().__init__(
            f"`{command}` to succeed", f"exit code {code}: {output.strip()[-4000:]}", "read the output above"
        )
