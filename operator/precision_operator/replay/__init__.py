"""Decisions taken again: recordings, and the same decide over recorded passes or over a month of metrics."""
