"""Admission by webhook, where the API server has no MutatingAdmissionPolicy. May import admission and kube."""
