"""`python -m pageant`: the command line."""

import sys

from pageant.scripts.cli import main

sys.exit(main())
