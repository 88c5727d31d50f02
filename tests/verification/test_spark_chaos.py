"""The account that spark-chaos ends with finds what is lost, repeated and spoiled."""

from __future__ import annotations

import quorate.testing
from verification.spark_chaos.__main__ import Account, account, value_of
from verification.spark_chaos.job import Plan, batches_done

SEED = 7


def test_what_is_lost_repeated_or_spoiled_is_counted() -> None:
    with quorate.testing.cluster(1, ["good", "bad"], cuttable=False) as cluster:
        client = cluster.client()
        good, bad = client.log("good"), client.log("bad")
        good.append_batch([value_of(SEED, number) for number in (1, 0, 2)])
        assert account(good, SEED, 3) == Account(3, lost=0, duplicates=0, strange=0)
        assert account(good, SEED, 5).lost == 2
        assert account(good, SEED, 2).strange == 1, "what should not be there"
        bad.append_batch([value_of(SEED, 0), value_of(SEED, 0), value_of(SEED, 2)[:-1] + b"x"])
        assert account(bad, SEED, 3) == Account(3, lost=1, duplicates=1, strange=1)


def test_a_driver_that_begins_has_done_no_batch(tmp_path: object) -> None:
    plan = Plan("e", "s", "t", "b", str(tmp_path), 1)
    assert batches_done(plan) == 0
    plan.done.write_text("12", encoding="utf-8")
    assert batches_done(plan) == 12
