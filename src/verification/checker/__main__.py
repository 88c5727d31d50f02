"""Command line of the checker: ``python -m verification.checker DIR [--voters 3]``.

Reads DIR/*.history, one file per client process, and DIR/final-*.log, one dump per replica of each
log. Fails if a rule was broken.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from verification.checker.files import load_run
from verification.checker.history import BadHistory
from verification.checker.judge import check

VIOLATIONS_SHOWN_MAX = 20


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m verification.checker", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the files of a run are")
    parser.add_argument("--voters", type=int, default=0, metavar="N",
                        help="receipts must name a majority of so many disks")  # fmt: skip
    parsed = parser.parse_args(arguments)
    try:
        histories, finals = load_run(parsed.folder)
        verdict = check(histories, finals, parsed.voters)
    except (BadHistory, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for violation in verdict.violations[:VIOLATIONS_SHOWN_MAX]:
        print(violation)
    for kind, count in verdict.counts.most_common():
        print(f"{count:8}  {kind} ({kind.rule}): {kind.meaning}")
    print(f"checker: {verdict}")
    return 1 if verdict.counts else 0


if __name__ == "__main__":
    sys.exit(main())
