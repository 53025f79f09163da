"""The operator: watches PrecisionPolicy objects and moves fleets of trainers between precisions.

``core`` decides and touches nothing; every other package only gathers what it needs or carries out what it said.
"""

__version__ = "0.1.0"
