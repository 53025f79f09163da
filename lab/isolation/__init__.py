"""`make isolation`: how well tenants are kept apart, measured part by part into build/isolation.json.

A part is a module of this package with the name of its key: ``hung_endpoint``, ``throttled_namespace``, ``receiver``,
``tenant_text``, ``disruption_budgets``, ``redaction``, ``decide`` (``SECTIONS`` in ``__main__``). Its module has two
functions:

- ``measure(directory: Path) -> Section`` does the work and returns the part's value in the file: an object, or a list of
  objects, of JSON numbers and strings. ``directory`` is an empty folder of its own for logs; it is deleted afterwards.
- ``missed(found: Section) -> list[str]`` says which bounds that value misses, one sentence each; empty where all hold.

``Section`` is in ``lab.isolation.part``. A part that is not there yet is left out. Modules with other names are helpers.
``python -m lab.isolation decide redaction`` runs some parts and keeps the others' figures in the file.
"""
