"""``python -m einnet_explore``."""

import sys

from einnet_explore.cli import main

if __name__ == "__main__":
    sys.exit(main())
