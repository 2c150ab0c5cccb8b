"""``python -m minicaffe`` is ``minicaffe``."""

import sys

from minicaffe.cli import main

if __name__ == "__main__":
    sys.exit(main())
