"""Pods and workloads as bodies: identity, what they say about precision, requests. Imports api, core and the port."""
