"""Pipelines from log to log and to Parquet: results and dead letters, each once."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from pipeline_rig import headers, pipeline_file

if TYPE_CHECKING:
    from pipeline_rig import Desk

SCHEMA = "id long not null, amount double, currency string"
JSON = {"decode": "json", "schema": "id long"}
# limits.record_bytes by default.
RECORD_BYTES = 4 << 20
CHECKS = {"amount is positive": "amount > 0"}
# The fault of each, as the message begins.
BAD = {
    b"": ("DECODE_FAILED", "the value is empty"),
    b"  ": ("DECODE_FAILED", "the value is empty"),
    b"\xff\xfe": ("DECODE_FAILED", "not UTF-8: FFFE"),
    b'{"id": 1, "amount"': ("DECODE_FAILED", 'malformed JSON: {"id": 1, "amount"'),
    b'{"id": 1, "amount": 2} {"id": 3}': ("DECODE_FAILED", "malformed JSON"),
    b'{"id": 1, "amount": 2}, {"id": 3}': ("DECODE_FAILED", "more than one JSON value"),
    b'{"id": 1, "amount": 2}}': ("DECODE_FAILED", "malformed JSON"),
    b'{"id": 1, "amount": 2}]} more': ("DECODE_FAILED", "malformed JSON"),
    b'{"id": 1, "amount": 2}],"_end":""} more': ("DECODE_FAILED", "malformed JSON"),
    b'{"id": 1, "amount": 2}],"x":[{"id": 2, "amount": 2}': ("DECODE_FAILED", "malformed JSON"),
    b'{"id": 1, "amount": 2}],"_inside":[{"id": 2, "amount": 2}': (
        "DECODE_FAILED",
        "malformed JSON",
    ),
    b'[{"id": 1, "amount": 2}]': ("DECODE_FAILED", "it does not fit the schema"),
    b"null": ("DECODE_FAILED", "no object: null"),
    b"17": ("DECODE_FAILED", "it does not fit the schema: 17"),
    b'{"id": 1, "amount": "much"}': ("DECODE_FAILED", "column amount is much, not double"),
    b'{"id": 1.5, "amount": 2}': ("DECODE_FAILED", "column id is 1.5, not bigint"),
    b'{"amount": 2}': ("DECODE_FAILED", "column id is null, and NOT NULL"),
    b'{"id": 1, "amount": -2}': ("CHECK_FAILED", "amount is positive: amount > 0 is false for {"),
    b'{"id": 1}': ("CHECK_FAILED", "amount is positive: amount > 0 is null for {"),
}


def order(number: int) -> bytes:
    currency = "EUR" if number % 2 else "USD"
    return json.dumps({"id": number, "amount": number + 0.5, "currency": currency}).encode()


def test_records_go_to_the_sink_or_to_the_dead_letters(desk: Desk) -> None:
    source = desk.log("in")
    desk.log("out"), desk.log("dlq")
    bad = list(BAD)
    source.append_batch(
        [*map(order, range(20)), *bad],
        keys=[b"k%d" % number for number in range(20 + len(bad))],
        headers=[[("trace", b"t%d" % number)] for number in range(20 + len(bad))],
    )
    file = desk.write(
        "piped.py",
        pipeline_file(
            "return df.where(\"currency = 'EUR'\").select('id', 'amount')",
            decode="json",
            schema=SCHEMA,
            checks=CHECKS,
            key="id",
            dead_letter="log:LOG-dlq",
        ),
    )
    done = desk.done("run", file, "--max-records-per-batch", "15")
    assert (done["read"], done["written"], done["dead_letters"]) == (20 + len(bad), 10, len(bad))
    assert (done["portions"], done["reached"], done["lag"]) == (3, 20 + len(bad), 0)
    out = desk.records("out")
    assert sorted(json.loads(record.value)["id"] for record in out) == list(range(1, 20, 2))
    assert {record.key for record in out} == {b"%d" % number for number in range(1, 20, 2)}
    assert json.loads(out[0].value) == {"id": 1, "amount": 1.5}

    letters = desk.records("dlq")
    assert sorted(letter.value for letter in letters) == sorted(bad)
    for letter in letters:
        said = headers(letter)
        place = int(said["source.offset"])
        assert letter.value == bad[place - 20]
        assert letter.key == b"k%d" % place
        assert letter.headers[0] == ("trace", b"t%d" % place)
        code, message = BAD[letter.value]
        assert said["error.code"] == code
        assert said["error.message"].startswith(message)
        assert (said["source.log"], said["pipeline"]) == (source.name, "piped")

    again = desk.done("run", file)
    assert (again["read"], again["written"], again["reached"]) == (0, 0, 20 + len(bad))
    listed = b'{"id": 23, "amount": 1, "currency": "EUR", "tags": ["]", [{}]]}'
    source.append_batch([order(21), listed, b"?"])
    more = desk.done("run", file)
    assert (more["read"], more["written"], more["dead_letters"]) == (3, 2, 1)
    assert len(desk.values("out")) == 12
    assert len(desk.values("dlq")) == len(bad) + 1


def test_toml_and_sql_give_the_same(desk: Desk) -> None:
    source = desk.log("in")
    desk.log("out"), desk.log("dlq")
    source.append_batch([*map(order, range(6)), b"?"])
    file = desk.write(
        "piped.toml",
        f"""
source = "log:LOG-in"
sink = "log:LOG-out"
decode = "json"
schema = "{SCHEMA}"
dead_letter = "log:LOG-dlq"
key = "id"
sql = "SELECT id, amount FROM source WHERE currency = 'EUR' AND _source.offset > 1"
checks = {{ "amount is positive" = "amount > 0" }}
""",
    )
    done = desk.done("run", file)
    assert (done["read"], done["written"], done["dead_letters"]) == (7, 2, 1)
    assert sorted(map(json.loads, desk.values("out")), key=str) == [
        {"id": 3, "amount": 3.5},
        {"id": 5, "amount": 5.5},
    ]
    assert [record.key for record in desk.records("out")] == [b"3", b"5"]


@pytest.mark.spark_slow
def test_parquet_has_the_columns_as_they_are(desk: Desk) -> None:
    source = desk.log("in")
    desk.log("dlq")
    source.append_batch([*map(order, range(10)), b"?"])
    file = desk.write(
        "piped.py",
        pipeline_file(
            "return df.select('id', 'amount', F.col('_source.offset').alias('place'))",
            decode="json",
            schema=SCHEMA,
            sink="parquet:rows",
            dead_letter="log:LOG-dlq",
        ),
    )
    done = desk.done("run", file, "--max-records-per-batch", "4")
    assert (done["read"], done["written"], done["dead_letters"]) == (11, 10, 1)
    source.append(order(10))
    assert desk.done("run", file)["written"] == 1
    assert desk.done("run", file)["written"] == 0
    table = pq.read_table(desk.directory / "rows").sort_by("id")
    assert table.schema.names == ["id", "amount", "place"]
    assert table["id"].to_pylist() == list(range(11))
    assert table["place"].to_pylist() == [*range(10), 11]
    [letter] = desk.records("dlq")
    assert (letter.value, headers(letter)["source.offset"]) == (b"?", "10")


def test_times_keep_their_microseconds(desk: Desk) -> None:
    desk.log("in").append(b"x")
    desk.log("out")
    body = (
        "return df.select(F.timestamp_micros(F.lit(1767268800123456)).alias('at'), "
        "F.expr(\"timestamp_ntz'2026-01-01 12:00:00.123456'\").alias('there'))"
    )
    desk.done("run", desk.write("piped.py", pipeline_file(body, decode="text")))
    [value] = desk.values("out")
    assert json.loads(value) == {
        "at": "2026-01-01T12:00:00.123456Z",
        "there": "2026-01-01T12:00:00.123456",
    }


@pytest.mark.spark_slow
def test_parquet_may_have_any_column_name(desk: Desk) -> None:
    desk.log("in").append_batch([order(1), b"?"])
    desk.log("dlq")
    file = desk.write(
        "piped.py",
        pipeline_file(
            "return df.select(F.col('id').alias('order-id'), F.struct(F.col('id').alias('a b')))",
            decode="json",
            schema=SCHEMA,
            sink="parquet:rows",
            dead_letter="log:LOG-dlq",
        ),
    )
    done = desk.done("run", file)
    assert (done["written"], done["dead_letters"]) == (1, 1)
    assert pq.read_table(desk.directory / "rows")["order-id"].to_pylist() == [1]


@pytest.mark.spark_slow
def test_a_letter_without_room_for_its_record_says_where_that_is(desk: Desk) -> None:
    source, out, letters = desk.log("in"), desk.log("out"), desk.log("dlq")
    # As much as a node takes by default, without and with a key and headers; and little enough.
    source.append(b"x" * RECORD_BYTES)
    source.append(b"x" * (RECORD_BYTES - 7), key=b"key", headers=[("h", b"\xff\xfe\xfd")])
    source.append(b"x" * (RECORD_BYTES - 5000), key=b"key")
    file = desk.write("piped.py", pipeline_file(**JSON, dead_letter="log:LOG-dlq"))
    assert desk.done("run", file)["dead_letters"] == 3
    found = sorted(desk.records("dlq"), key=lambda letter: headers(letter)["source.offset"])
    for letter in found[:2]:
        assert (letter.key, letter.value) == (None, b"")
        assert letter.headers[0] == ("record.left_out", b"%d" % RECORD_BYTES)
        assert headers(letter)["error.code"] == "DECODE_FAILED"
        assert headers(letter)["source.log"] == source.name
    assert (found[2].key, len(found[2].value)) == (b"key", RECORD_BYTES - 5000)
    assert found[2].headers[0] == ("error.code", b"DECODE_FAILED")

    ran = desk.run("replay", letters.name, "--to", out.name)
    assert (ran.status, out.end_offset()) == (1, 0)
    assert ran.error.startswith(f"INVALID_ARGUMENT: {letters.name} offset ")
    assert "limits.record_bytes" in ran.error
    assert f"It is at {source.name} offset " in ran.error
    assert '--where "left_out is null"' in ran.error
    done = desk.done("replay", letters.name, "--to", out.name, "--where", "left_out is null")
    assert (done["replayed"], done["skipped"], out.end_offset()) == (1, 2, 1)


@pytest.mark.spark_slow
def test_a_long_condition_does_not_fill_a_letter(desk: Desk) -> None:
    desk.log("in").append(b"x")
    desk.log("out"), desk.log("dlq")
    checks = {"none is right": f"value = '{'y' * 5000}'"}
    file = desk.write(
        "piped.py", pipeline_file(decode="text", checks=checks, dead_letter="log:LOG-dlq")
    )
    desk.done("run", file)
    [letter] = desk.records("dlq")
    message = headers(letter)["error.message"]
    assert (message[:25], len(message)) == ("none is right: value = 'y", 1000)


@pytest.mark.spark_slow
def test_bytes_text_and_csv(desk: Desk) -> None:
    source = desk.log("in")
    for log in ("raw", "text", "csv", "dlq"):
        desk.log(log)
    values = [b"1,apple", b"\xff\x00", b"x,pear", b"2,pear,more", b""]
    source.append_batch(values, keys=[b"a", None, b"c", b"d", b"e"])
    raw = pipeline_file("return df.withColumn('key', F.col('_source.key'))", sink="log:LOG-raw")
    assert (
        desk.done("run", desk.write("raw.py", raw.replace("def piped", "def bytes_")))["written"]
        == 5
    )
    assert [(one.key, one.value) for one in desk.records("raw")] == list(
        zip([b"a", None, b"c", b"d", b"e"], values, strict=True)
    )
    text = pipeline_file(
        "return df.select(F.upper('value').alias('value'))",
        sink="log:LOG-text",
        decode="text",
        dead_letter="log:LOG-dlq",
    )
    done = desk.done("run", desk.write("text.py", text))
    assert (done["written"], done["dead_letters"]) == (4, 1)
    assert desk.values("text") == [b"1,APPLE", b"X,PEAR", b"2,PEAR,MORE", b""]
    csv = pipeline_file(
        sink="log:LOG-csv", decode="csv", schema="n int, fruit string", dead_letter="log:LOG-dlq"
    )
    done = desk.done("run", desk.write("csv.py", csv.replace("def piped", "def csv")))
    assert (done["written"], done["dead_letters"]) == (1, 4)
    assert desk.values("csv") == [b'{"n":1,"fruit":"apple"}']


@pytest.mark.spark_slow
def test_an_aggregate_with_a_watermark(desk: Desk) -> None:
    """State lives in the checkpoint: a window closes in a later run than it was opened."""
    source = desk.log("in")
    desk.log("out")
    day = 86_400_000_000
    for hour in (0, 1, 1, 2):
        source.append(b"1", timestamp=day + hour * 3_600_000_000)
    file = desk.write(
        "piped.py",
        pipeline_file(
            "return (df.withColumn('at', F.col('_source.timestamp'))"
            ".withWatermark('at', '1 minute')"
            ".groupBy(F.window('at', '1 hour')).agg(F.count('*').alias('n'))"
            ".select(F.hour('window.start').alias('hour'), 'n'))",
            decode="text",
        ),
    )
    desk.done("run", file)
    first = {json.loads(value)["hour"]: json.loads(value)["n"] for value in desk.values("out")}
    assert first == {0: 1}, "the others may still get records"
    source.append(b"1", timestamp=day + 5 * 3_600_000_000)
    desk.done("run", file)
    found = [json.loads(value) for value in desk.values("out")]
    assert sorted((one["hour"], one["n"]) for one in found) == [(0, 1), (1, 2), (2, 1)]


def test_functions_of_the_file_run_in_workers(desk: Desk) -> None:
    desk.log("in").append_batch([b"a", b"b"])
    desk.log("out")
    text = pipeline_file("return df.select(shout('value').alias('value'))", decode="text")
    text = text.replace("@pipeline", "@F.udf('string')\ndef shout(s):\n    return s * 2\n@pipeline")
    assert desk.done("run", desk.write("piped.py", text))["written"] == 2
    assert desk.values("out") == [b"aa", b"bb"]


@pytest.mark.spark_slow
def test_a_backfill_is_written_once_and_leaves_the_checkpoint_alone(desk: Desk) -> None:
    source = desk.log("in")
    desk.log("out"), desk.log("dlq")
    source.append_batch([*map(order, range(8)), b"?"])
    file = desk.write(
        "piped.py",
        pipeline_file(decode="json", schema="id long", dead_letter="log:LOG-dlq"),
    )
    done = desk.done("run", file, "--from", "4")
    assert (done["from"], done["to"], done["read"]) == (4, 9, 5)
    assert (done["written"], done["dead_letters"], done["already"]) == (4, 1, 0)
    again = desk.run("run", file, "--from", "4", "--to", "9")
    assert again.status == 0
    assert "this range was written before: nothing was added" in again.err
    facts = dict(line.split(maxsplit=1) for line in again.out.splitlines() if "dead" not in line)
    assert (facts["written"], facts["already"]) == ("0", "5")
    assert (len(desk.values("out")), len(desk.values("dlq"))) == (4, 1)
    assert not (desk.directory / ".quorate").exists()
    # The stream has not seen any of it.
    assert desk.done("run", file)["read"] == 9
    refused = desk.run("run", file, "--from", "5", "--trigger", "1s")
    assert (refused.status, "cannot go with --trigger" in refused.err) == (2, True)


def test_sigterm_ends_a_run_without_an_end(desk: Desk) -> None:
    source, out = desk.log("in"), desk.log("out")
    source.append_batch([b"a", b"b"])
    file = desk.write("piped.py", pipeline_file())

    def end() -> None:
        while not out.end_offset():
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=end, daemon=True)
    # If it came too late, this process would not survive it.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        thread.start()
        done = desk.done("run", file, "--trigger", "200ms")
        thread.join()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (done["written"], desk.values("out")) == (2, [b"a", b"b"])


def test_a_dry_run_shows_and_writes_nothing(desk: Desk) -> None:
    source = desk.log("in")
    desk.log("out"), desk.log("dlq")
    source.append_batch([*map(order, range(30)), b"?"])
    file = desk.write(
        "piped.py",
        pipeline_file(
            "return df.select('id')", decode="json", schema=SCHEMA, dead_letter="log:LOG-dlq"
        ),
    )
    shown = desk.run("run", file, "--dry-run")
    assert shown.status == 0, shown.err
    assert "nothing was written" in shown.err
    lines = dict(line.split("  ", 1) for line in shown.out.splitlines() if "  " in line)
    facts = {name: fact.strip() for name, fact in lines.items()}
    assert facts["columns out"] == "id bigint"
    assert facts["columns in"].startswith("id bigint, amount double, currency string, _source")
    assert (facts["from"], facts["to"], facts["lag"]) == ("0", "31", "31")
    assert facts["dead letter"] == f"log:{desk.name('dlq')}"
    assert facts["checkpoint"].endswith("/.quorate/checkpoints/piped")
    assert facts["first refusal"] == "DECODE_FAILED: malformed JSON: ?"
    assert shown.out.count('{"id":') == 20
    assert desk.values("out") == desk.values("dlq") == []
    assert not (desk.directory / ".quorate").exists()
    # After a run it shows the records that are left.
    desk.done("run", file)
    source.append(order(31))
    assert desk.done("run", file, "--dry-run")["lag"] == 1
