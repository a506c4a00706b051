"""`python -m outscope`."""

import sys

from outscope.cli import main

sys.exit(main())
