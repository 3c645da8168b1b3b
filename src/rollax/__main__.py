"""`python -m rollax` is `rollax`."""

import sys

from rollax.cli import main

sys.exit(main())
