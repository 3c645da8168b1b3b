"""`python -m rollax` is `rollax`."""

import sys

from rollax.cli.main import main

sys.exit(main())
