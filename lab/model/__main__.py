"""Entry of `python -m lab.model`."""

import sys

from lab.model.cli import main

sys.exit(main())
