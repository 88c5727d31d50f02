"""The definition of a pipeline, and the errors for a definition that is invalid, without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from pipeline_rig import pipeline_file

from quorate.errors import InvalidArgument
from quorate.pipeline import Pipeline, pipeline
from quorate.pipeline.checkpoints import checkpoint_for, default_checkpoint
from quorate.pipeline.pipeline_file import load
from quorate.pipeline.places import Place, parse_place

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

TOML = """
source = "log:orders"
sink = "log:paid"
decode = "json"
schema = "id long, amount double"
dead_letter = "log:orders.dlq"
key = "id"
sql = "SELECT id FROM source"

[checks]
"amount is positive" = "amount > 0"
"""


def written(tmp_path: Path, name: str, text: str) -> Path:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return file


def test_a_function_becomes_a_pipeline() -> None:
    @pipeline(
        source="log:orders",
        decode="json",
        schema="id long",
        checks={"positive": "id > 0"},
        sink="parquet:/data/paid",
        dead_letter="log:orders.dlq",
    )
    def paid(df: DataFrame) -> DataFrame:
        return df.where("id > 1")

    assert isinstance(paid, Pipeline)
    assert (paid.name, paid.source) == ("paid", Place("log", "orders"))
    assert (paid.sink, paid.dead_letter) == (
        Place("parquet", "/data/paid"),
        Place("log", "orders.dlq"),
    )
    assert paid.may_refuse


def test_toml_says_the_same(tmp_path: Path) -> None:
    made = load(written(tmp_path, "paid.toml", TOML))
    assert (made.name, made.transform) == ("paid", "SELECT id FROM source")
    assert made.checks == {"amount is positive": "amount > 0"}
    named = load(written(tmp_path, "other.toml", 'name = "mine"\n' + TOML))
    assert named.name == "mine"


def test_importing_pipelines_needs_no_spark() -> None:
    code = "import sys, quorate.pipeline; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"pyspark", "py4j", "quorate.server"}.isdisjoint(done.stdout.split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"source": "orders"}, "source = 'orders' is not log:NAME"),
        ({"source": "parquet:/x"}, "source = 'parquet:/x' is not log:NAME"),
        ({"source": "log:a b"}, "source = 'log:a b'"),
        ({"source": "log:"}, "has no name; write log:NAME"),
        ({"sink": "s3:paid"}, "sink = 's3:paid' is not log:NAME or parquet:DIR"),
        ({"sink": "log:LOG-in"}, "is source and sink"),
        ({"dead_letter": "parquet:/x"}, "dead_letter = 'parquet:/x' is not log:NAME"),
        ({"dead_letter": "log:LOG-out"}, "dead letters need a log of their own"),
        ({"decode": "avro"}, "decode = 'avro' is none of json, csv, text, raw"),
        ({"decode": "json"}, 'decode = "json" needs a schema'),
        ({"decode": "text", "schema": "id long"}, 'decode = "text" has no schema'),
        ({"checks": "amount > 0"}, "checks = 'amount > 0': write {"),
        ({"checks": {"positive": ""}}, "check 'positive' = '' is not text"),
        ({"sink": "parquet:x", "key": "id"}, "only records of a log have a key"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    options: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        load(written(tmp_path, "piped.py", pipeline_file("return df", **options)))
    assert said in str(caught.value)
    assert "piped.py, line" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("piped.py", "def f(:\n", "piped.py, line 1: "),
        ("piped.py", "import json\n1/0\n", "piped.py, line 2: ZeroDivisionError"),
        ("piped.py", "import nothing_of_that_name\n", "line 1: ModuleNotFoundError"),
        ("piped.py", "x = 1\n", "no function with @pipeline"),
        ("piped.py", pipeline_file() + pipeline_file().replace("piped", "other"), "other, piped"),
        ("piped.toml", "source = log", "piped.toml: Invalid value"),
        (
            "piped.toml",
            TOML.replace("sql =", "query ="),
            "a pipeline has no query; there are name, sql",
        ),
        ("piped.toml", TOML.replace("dead_letter =", "dead_leter ="), "did you mean dead_letter?"),
        ("piped.toml", TOML.replace("sql =", "#"), 'write sql = "SELECT … FROM source"'),
        ("piped.toml", TOML.replace('sink = "log:paid"', ""), "sink is missing"),
        ("piped.toml", 'name = "a b"\n' + TOML, "cannot name a pipeline"),
        ("piped.sql", "SELECT 1", "neither .py nor .toml"),
    ],
)
def test_a_file_that_is_none_says_where(name: str, text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as caught:
        load(written(tmp_path, name, text))
    assert said in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="does not exist; `quorate pipeline init NAME`"):
        load(tmp_path / "none.py")
    with pytest.raises(InvalidArgument, match="is a directory"):
        load(tmp_path)


def test_a_file_that_was_just_changed_is_read_again(tmp_path: Path) -> None:
    """As long as before, and in the same second."""
    for sink in ("one", "two"):
        file = written(tmp_path, "piped.py", pipeline_file(sink=f"log:{sink}"))
        os.utime(file, (1_700_000_000, 1_700_000_000))
        assert load(file).sink.name == sink


def test_relative_paths_begin_beside_the_file(tmp_path: Path) -> None:
    assert Place("parquet", "out").beside(tmp_path) == Place("parquet", str(tmp_path / "out"))
    for name in ("/data/out", "s3a://bucket/out"):
        assert parse_place("sink", f"parquet:{name}").beside(tmp_path).name == name
    assert Place("log", "out").beside(tmp_path) == Place("log", "out")


def test_a_checkpoint_has_a_default_only_on_this_machine(tmp_path: Path) -> None:
    default = default_checkpoint(tmp_path / "paid.py", "paid")
    assert default == (tmp_path / ".quorate" / "checkpoints" / "paid").as_uri()
    for master in (None, "local", "local[4]", "local[*,2]"):
        assert checkpoint_for(None, default, master) == default
    for master in ("spark://host:7077", "yarn", "local-cluster[2,1,1024]"):
        assert checkpoint_for("hdfs://x/y", default, master) == "hdfs://x/y"
        with pytest.raises(InvalidArgument, match="--checkpoint is needed with --master"):
            checkpoint_for(None, default, master)
