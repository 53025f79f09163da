"""``python -m precision_operator.cli``: the plugin where no console script is installed."""

import sys

from precision_operator.cli import main

if __name__ == "__main__":
    sys.exit(main())
