"""Entry point of `python -m rollax`, which is equivalent to the command `rollax`."""

import sys

from rollax.cli.main import main

sys.exit(main())
