"""The laboratory: a real Kubernetes, a real Prometheus and the images, built from source on one machine without Docker.

Nothing here ships with the operator. Tests, the demo and continuous integration stand on it.
"""
