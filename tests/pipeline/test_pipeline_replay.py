"""Dead letters go back as they were, and once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline_rig import Desk

    import quorate


def put_letters(log: quorate.Log, records: int, code: str = "DECODE_FAILED") -> None:
    """As a pipeline puts them there, with a header of the record's own before."""
    start = log.end_offset()
    numbers = range(start, start + records)
    log.append_batch(
        [b"value %d \xff" % number for number in numbers],
        keys=[b"key %d" % number if number % 2 else None for number in numbers],
        headers=[
            [
                ("pipeline", b"of the record"),
                ("error.code", code.encode()),
                ("error.message", b"it is no JSON"),
                ("source.log", b"orders"),
                ("source.offset", b"%d" % (10 * number)),
                ("pipeline", b"paid"),
            ]
            for number in numbers
        ],
        timestamps=[1_000_000 + number for number in numbers],
    )


def test_letters_go_back_as_they_were_and_once(desk: Desk) -> None:
    letters, orders = desk.log("orders.dlq"), desk.log("orders")
    put_letters(letters, 4)
    # Not every record in there has to be a letter.
    letters.append(b"plain", headers=[("pipeline", b"x")])
    done = desk.done("replay", letters.name, "--to", orders.name)
    assert (done["replayed"], done["skipped"], done["next"]) == (5, 0, 5)
    records = desk.records("orders")
    assert [record.value for record in records] == [
        *(b"value %d \xff" % number for number in range(4)),
        b"plain",
    ]
    assert [record.key for record in records] == [None, b"key 1", None, b"key 3", None]
    assert [record.headers for record in records[3:]] == [
        [("pipeline", b"of the record")],
        [("pipeline", b"x")],
    ]
    assert [record.timestamp for record in records[:4]] == [1_000_000 + n for n in range(4)]

    ran = desk.run("replay", letters.name, "--to", orders.name)
    assert (ran.status, "nothing new" in ran.out) == (0, True)
    put_letters(letters, 2)
    done = desk.done("replay", letters.name, "--to", orders.name)
    assert (done["first"], done["replayed"]) == (5, 2)
    assert orders.end_offset() == 7
    assert letters.end_offset() == 7, "the letters stay"


def test_only_those_that_are_meant(desk: Desk) -> None:
    letters, orders = desk.log("orders.dlq"), desk.log("orders")
    put_letters(letters, 3)
    put_letters(letters, 3, "CHECK_FAILED")
    where = (
        "error_code = 'CHECK_FAILED' and source_log = 'orders' and source_offset > 30 "
        "and pipeline = 'paid' and error_message like '%JSON' and offset < 5 "
        "and value like 'value 4%' and key is null and timestamp < '2026-01-01'"
    )
    for replayed, skipped in ((1, 5), (0, 0)):
        done = desk.done("replay", letters.name, "--to", orders.name, "--where", where)
        assert (done["replayed"], done["skipped"]) == (replayed, skipped)
    assert desk.values("orders") == [b"value 4 \xff"]
    done = desk.done("replay", letters.name, "--to", orders.name, "--where", "offset = 0")
    assert (done["replayed"], done["skipped"]) == (1, 5), "another condition is another replay"


def test_what_cannot_be_is_said(desk: Desk) -> None:
    letters, orders = desk.log("orders.dlq"), desk.log("orders")
    put_letters(letters, 1)
    cases = {
        (letters.name, "--to", desk.name("no")): f"`quorate log create {desk.name('no')}`",
        (letters.name, "--to", letters.name): "is where the letters are",
        (letters.name, "--to", orders.name, "--where", "code = 1"): "error_code, error_message",
        (letters.name, "--to", orders.name, "--where", "key ="): "--where 'key ='",
        (letters.name, "--to", orders.name, "--where", "offset"): "--where 'offset'",
    }
    for arguments, said in cases.items():
        ran = desk.run("replay", *arguments)
        assert (ran.status, said in ran.err) == (1, True), ran.err
    assert desk.run("replay", letters.name).status == 2
    assert orders.end_offset() == 0
