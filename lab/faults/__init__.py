"""Faults on purpose, and what came of them: recorded in etcd's order, judged afterwards."""
