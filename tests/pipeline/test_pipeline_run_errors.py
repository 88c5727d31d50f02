"""The errors of a pipeline that cannot be run: each names the cause and the remedy."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from pipeline_rig import pipeline_file

from dev_rig import command, plain_environment
from quorate.pipeline.files import Files
from quorate.pipeline.run_lock import only_run

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline_rig import Desk
    from pyspark.sql import SparkSession

JSON = {"decode": "json", "schema": "id long"}


def test_init_writes_a_file_that_runs_as_it_stands(desk: Desk) -> None:
    logs = {"source": desk.name("in"), "sink": desk.name("out"), "dead-letter": desk.name("dlq")}
    options = [text for name, log in logs.items() for text in (f"--{name}", log)]
    written = desk.run("init", "paid", *options)
    assert written.status == 0
    for log in logs.values():
        assert f"quorate log create {log}" in written.out
        desk.client.create_log(log)
    desk.client.log(logs["source"]).append_batch(
        [b'{"id": 1, "amount": 9.5, "currency": "EUR"}', b'{"id": 2, "amount": 0}']
    )
    done = desk.done("run", "paid.py")
    assert (done["written"], done["dead_letters"]) == (1, 1)
    assert desk.values("out") == [b'{"id":1,"amount":9.5}']
    assert desk.records("out")[0].key == b"1"
    before = (desk.directory / "paid.py").read_text()
    again = desk.run("init", "paid")
    assert again.status == 1
    assert "INVALID_ARGUMENT: paid.py is there already" in again.err
    assert (desk.directory / "paid.py").read_text() == before
    for name in ("2paid", "class", "None"):
        wrong = desk.run("init", name)
        assert (wrong.status, "cannot be the name of a Python function" in wrong.err) == (2, True)
        assert not (desk.directory / f"{name}.py").exists()


@pytest.mark.spark_slow
def test_without_a_dead_letter_log_the_first_bad_record_is_named(desk: Desk) -> None:
    source = desk.log("in")
    desk.log("out"), desk.log("dlq")
    source.append_batch([b'{"id": 1}', b'{"id": "x"}', b'{"id": 3}'])
    file = desk.write("piped.py", pipeline_file(**JSON))
    failed = desk.run("run", file, "--json")
    assert failed.status == 1
    told = f"{source.name} offset 1: column id is x, not bigint; to keep such records aside"
    assert f"error: DECODE_FAILED: {told}" in failed.err
    assert failed.document["error"]["code"] == "DECODE_FAILED"
    assert desk.values("out") == []
    # With a place for them it goes on, with the same checkpoint.
    desk.write("piped.py", pipeline_file(**JSON, dead_letter="log:LOG-dlq"))
    done = desk.done("run", file)
    assert (done["read"], done["written"], done["dead_letters"]) == (3, 2, 1)


@pytest.mark.parametrize(
    ("options", "body", "said"),
    [
        (
            {"decode": "json", "schema": "id lnog"},
            "",
            "INVALID_ARGUMENT: schema = 'id lnog' is not",
        ),
        ({"decode": "json", "schema": "_source int"}, "", "_source is a column that a pipeline"),
        (
            {**JSON, "checks": {"x": "nothing > 0"}},
            "",
            'SPARK_FAILED: check "x": UNRESOLVED_COLUMN.WITH_SUGGESTION: A column',
        ),
        ({"checks": {"x": "value >"}}, "", 'SPARK_FAILED: check "x": PARSE_SYNTAX_ERROR'),
        (JSON, "return df.select('nr')", "SPARK_FAILED: piped.py, line 5: UNRESOLVED_COLUMN"),
        ({**JSON, "key": "nr"}, "", "key = 'nr' is not a column of the result, which has id"),
        ({}, "return None", "piped gives NoneType, not a DataFrame: return one"),
        ({}, "return df.nothing", "SPARK_FAILED: piped.py, line 5: ATTRIBUTE_NOT_SUPPORTED"),
        ({}, "return [][1]", "SPARK_FAILED: piped: IndexError: list index out of range ("),
        ({}, "return df.select('_source')", "the transformation gives no column"),
        ({}, "return df.withColumn('n', F.lit(1))", "column n is not known"),
        ({}, "return df.sparkSession.range(1)", "a frame that is not made from the one"),
        (JSON, "return df.groupBy('id').count()", "watermark"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    options: dict[str, object], body: str, said: str, desk: Desk
) -> None:
    desk.log("in").append(b'{"id": 1}')
    desk.log("out")
    file = desk.write("piped.py", pipeline_file(body or "return df", **options))
    failed = desk.run("run", file)
    assert failed.status == 1
    assert said in failed.error
    assert desk.values("out") == []


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT nr FROM source", "piped, sql: UNRESOLVED_COLUMN.WITH_SUGGESTION: A column"),
        ("SELEC id FROM source", "piped, sql: PARSE_SYNTAX_ERROR: "),
        (
            "SELECT id FROM sorce",
            "piped, sql: TABLE_OR_VIEW_NOT_FOUND: The table or view `sorce` cannot be found.",
        ),
    ],
)
def test_what_is_wrong_with_sql_is_said_of_it(sql: str, said: str, desk: Desk) -> None:
    desk.log("in").append(b'{"id": 1}')
    desk.log("out")
    file = desk.write(
        "piped.toml",
        'source = "log:LOG-in"\nsink = "log:LOG-out"\ndecode = "json"\nschema = "id long"\n'
        f'sql = "{sql}"\n',
    )
    failed = desk.run("run", file)
    assert failed.status == 1
    assert failed.error.startswith(f"SPARK_FAILED: {said}")
    assert "current_schema" not in failed.error


def test_what_can_be_known_is_said_before_spark_is_started(desk: Desk) -> None:
    source = desk.log("in")
    desk.log("out")
    text = desk.write("a.txt", "1\n")
    file = desk.write("piped.py", pipeline_file())
    rows = desk.write("rows.py", pipeline_file(sink="parquet:a.txt"))
    cases: dict[tuple[str | Path, ...], tuple[int, str]] = {
        (file, "--checkpoint", text): (1, f"--checkpoint {text} is a file, not a directory"),
        (rows,): (1, f"sink {text} is a file, not a directory"),
        (file, "--to", "99"): (1, f"--to 99: {source.name} ends at 0"),
        (file, "--from", "@2026-99-01"): (2, "Invalid value for '--from': '@2026-99-01' is no"),
    }
    for arguments, (status, said) in cases.items():
        failed = desk.run_without_spark("run", *arguments)
        assert (failed.status, said in failed.error) == (status, True), failed.err


def test_an_error_inside_a_task_names_the_line(desk: Desk) -> None:
    desk.log("in").append_batch([b"1", b"0"])
    desk.log("out")
    text = pipeline_file("return df.select(part('value').alias('value'))", decode="text")
    text = text.replace(
        "@pipeline", "@F.udf('string')\ndef part(s):\n    return str(1 / int(s))\n@pipeline"
    )
    file = desk.write("piped.py", text)
    failed = desk.run("run", file)
    assert failed.status == 1
    assert "SPARK_FAILED: ZeroDivisionError: division by zero" in failed.err
    assert "piped.py, line 5)" in failed.err
    assert desk.values("out") == []


def test_logs_have_to_be_there(desk: Desk) -> None:
    file = desk.write("piped.py", pipeline_file(**JSON, dead_letter="log:LOG-dlq"))
    for log in ("in", "out", "dlq"):
        missing = desk.run("run", file)
        assert missing.status == 1
        name = desk.name(log)
        assert f"error: LOG_NOT_FOUND: log {name} does not exist" in missing.err
        assert f"`quorate log create {name}`" in missing.err
        desk.log(log)
    nobody = desk.run("run", file, "--endpoints", "127.0.0.1:1", "--timeout", "0.5")
    assert (nobody.status, "error: TIMEOUT: " in nobody.err) == (1, True)
    assert "127.0.0.1:1" in nobody.err
    nowhere = desk.run("run", file, "--master", "spark://nowhere:7077")
    assert nowhere.status == 1
    assert "--checkpoint is needed with --master spark://nowhere:7077" in nowhere.err


@pytest.mark.spark_slow
def test_a_checkpoint_belongs_to_one_pipeline(desk: Desk) -> None:
    source = desk.log("in")
    for log in ("out", "out2", "in2"):
        desk.log(log)
    source.append(b"1")
    file = desk.write("piped.py", pipeline_file())
    desk.done("run", file)
    kept = desk.directory / ".quorate" / "checkpoints" / "piped"

    other = desk.write("other.py", pipeline_file().replace("def piped", "def other"))
    failed = desk.run("run", other, "--checkpoint", kept)
    assert failed.status == 1
    assert "is of the pipeline piped, not other; with another --checkpoint" in failed.err
    desk.write("piped.py", pipeline_file(sink="log:LOG-out2"))
    assert "is of the sink log:" in desk.run("run", file).err
    desk.write("piped.py", pipeline_file(source="log:LOG-in2"))
    assert "is of the source log:" in desk.run("run", file).err

    taken = desk.directory / "ingested"
    text = desk.write("a.txt", "1\n")
    desk.done("ingest", text, desk.name("in2"), "--checkpoint", taken)
    failed = desk.run("run", other, "--checkpoint", taken)
    assert f"is of an ingest of {text}, not of the pipeline other; give" in failed.err
    failed = desk.run("ingest", text, desk.name("in2"), "--checkpoint", kept)
    assert f"is of the pipeline piped, not of an ingest of {text}; give" in failed.err

    desk.client.delete_log(source.name)
    desk.client.create_log(source.name).append(b"2")
    desk.write("piped.py", pipeline_file())
    recreated = desk.run("run", file)
    assert recreated.status == 1
    assert f"is of the incarnation {source.incarnation}" in recreated.err
    assert desk.values("out") == [b"1"]
    (kept / "quorate.json").unlink()
    assert "the checkpoint of a query that is no pipeline" in desk.run("run", file).err


def test_a_run_does_not_begin_beside_another(desk: Desk, spark: SparkSession) -> None:
    desk.log("in").append(b"1")
    desk.log("out")
    file = desk.write("piped.py", pipeline_file())
    kept = desk.directory / ".quorate" / "checkpoints" / "piped"
    with only_run(Files(spark, str(kept)), "quorate.lock"):
        failed = desk.run("run", file)
    said = f"INVALID_ARGUMENT: another run is at work in file:{kept}"
    assert (failed.status, said in failed.err) == (1, True), failed.err
    assert desk.values("out") == []
    desk.done("run", file)
    assert desk.values("out") == [b"1"]


def test_without_pyspark_it_says_what_to_install(desk: Desk, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "pyspark"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('No module named pyspark')\n")
    desk.log("in"), desk.log("out")
    file = desk.write("piped.py", pipeline_file().partition("\n")[2])
    environment = {
        **plain_environment(),
        "PYTHONPATH": str(hidden.parent),
        "QUORATE_ENDPOINTS": os.environ["QUORATE_ENDPOINTS"],
    }
    for arguments in (["run", str(file)], ["run", "--help"], ["--help"]):
        done = subprocess.run(
            command("pipeline", *arguments),
            capture_output=True, text=True, env=environment, check=False,
        )  # fmt: skip
        if "--help" in arguments:
            assert done.returncode == 0, done.stderr
        else:
            assert done.returncode == 1
            [line] = done.stderr.strip().splitlines()
            assert line.startswith("error: SPARK_FAILED: quorate.spark needs PySpark; ")
            assert "pip install 'quorate[spark]'" in line
