"""The kinds of workloads, a module each: how it restarts, when it is finished, whether its template changed. Imports as
its parent does."""
