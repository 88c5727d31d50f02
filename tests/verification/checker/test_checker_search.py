"""The checker and a search through all orders say the same about small histories.

``QUORATE_CHECKER_HISTORIES=1000000`` compares more of them.
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random

import pytest
from checker_rig import draw_small, explained, small_run

HISTORIES = int(os.environ.get("QUORATE_CHECKER_HISTORIES", "40000"))
PARTS = 4


@pytest.mark.timeout(max(60, HISTORIES // 100))
@pytest.mark.parametrize("part", range(PARTS))
def test_a_history_is_blamed_if_and_only_if_no_order_explains_it(part: int) -> None:
    found: Counter[bool] = Counter()
    for number in range(part, HISTORIES, PARTS):
        small = draw_small(Random(f"small/{number}"))
        verdict = small_run(small).judge()
        found[explained(small)] += 1
        assert explained(small) == (not verdict.counts), f"{number}: {small}\n{verdict.violations}"
    assert min(found.values()) > sum(found.values()) / 5  # else half of the question is not asked
