"""Errors of Spark, in one line: from texts as Spark gives them."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from quorate.errors import LogNotFound, QuorateError, SparkFailed
from quorate.pipeline.spark_errors import plain_errors

WRAPPED = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted by \
stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in stage 1.0 \
(TID 1) (localhost executor driver): org.apache.spark.api.python.PythonException: {inside}

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
Driver stacktrace: SQLSTATE: XXKST"""
TRACEBACK = """Traceback (most recent call last):
  File "/x/pyspark/worker.py", line 1, in main
    process()
  File "/home/me/paid.py", line 12, in rate
    return 1 / 0
{error}
"""


def plain(text: str) -> QuorateError:
    with pytest.raises(QuorateError) as caught, plain_errors():
        raise PySparkException(text)
    return caught.value


def test_an_error_of_this_package_keeps_its_code() -> None:
    inside = TRACEBACK.format(error="quorate.errors.LogNotFound: LOG_NOT_FOUND: no log is called x")
    error = plain(WRAPPED.format(inside=inside))
    assert type(error) is LogNotFound
    assert str(error) == "no log is called x"


def test_what_an_expression_raised() -> None:
    text = "[USER_RAISED_EXCEPTION] DECODE_FAILED: orders offset 7: malformed SQLSTATE: P0001"
    error = plain(WRAPPED.format(inside=text))
    assert (error.code, str(error)) == ("DECODE_FAILED", "orders offset 7: malformed")


def test_an_error_of_the_user_names_its_line() -> None:
    inside = TRACEBACK.format(error="ZeroDivisionError: division by zero")
    error = plain(WRAPPED.format(inside=inside))
    assert type(error) is SparkFailed
    assert str(error) == "ZeroDivisionError: division by zero (/home/me/paid.py, line 12)"


def test_what_spark_itself_says() -> None:
    text = "[DIVIDE_BY_ZERO] Division by zero. Use try_divide. SQLSTATE: 22012"
    assert str(plain(text)) == "DIVIDE_BY_ZERO: Division by zero. Use try_divide."
    assert (
        str(plain(WRAPPED.format(inside=text)))
        == "DIVIDE_BY_ZERO: Division by zero. Use try_divide."
    )
    assert str(plain("it broke\n\tat java.lang.X")) == "it broke"


def test_what_java_says() -> None:
    text = """An error occurred while calling o51.create.
: java.lang.RuntimeException: java.io.IOException: it did not work
\tat org.apache.hadoop.fs.RawLocalFileSystem.mkdirs(RawLocalFileSystem.java:892)
Caused by: org.apache.hadoop.fs.ParentNotDirectoryException: Parent path is no directory: file:/a
\tat org.apache.hadoop.fs.FileSystem.create(FileSystem.java:1211)
"""
    said = "ParentNotDirectoryException: Parent path is no directory: file:/a"
    assert str(plain(text)) == said


def test_names_that_are_not_for_users_are_not_offered() -> None:
    text = "[NO_COLUMN] There is no `x`. Did you mean one of the following? [{}]. SQLSTATE: 42703"
    some = plain(text.format("`a`, `_source`, `_refusal`, `_value`"))
    said = "NO_COLUMN: There is no `x`. Did you mean one of the following? [`a`, `_source`]."
    assert str(some) == said
    assert str(plain(text.format("`_refusal`"))) == "NO_COLUMN: There is no `x`."


def test_other_errors_are_left_alone() -> None:
    with pytest.raises(KeyError), plain_errors():
        raise KeyError("x")
    with pytest.raises(LogNotFound), plain_errors():
        raise LogNotFound("x")
