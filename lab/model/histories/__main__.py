"""Entry of ``python -m lab.model.histories``."""

from lab.model.histories import page

print(page(), end="")
