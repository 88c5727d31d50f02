"""``python -m quorate`` is the command ``quorate``."""

from __future__ import annotations

import sys

from quorate.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
