"""What all tests share."""

import os

# Python processes that tests start import the installed package, not the source in the folder where pytest was called.
os.environ["PYTHONSAFEPATH"] = "1"
