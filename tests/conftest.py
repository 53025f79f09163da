"""Fixtures that every level of test shares."""

from __future__ import annotations
