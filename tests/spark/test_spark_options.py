"""The options of a read: their values, and the errors for values that cannot be meant."""

from __future__ import annotations

import pytest

from quorate.errors import InvalidArgument
from quorate.spark.cluster_address import ClusterAddress
from quorate.spark.option_names import check_names
from quorate.spark.read.options import Moment, ReadOptions, parse_read_options

BASE = {"endpoints": "127.0.0.1:7401", "log": "orders"}


def parsed(streaming: bool | None = None, /, **given: str) -> ReadOptions:
    """With names in lower case, as Spark gives them."""
    lowered = {name.lower(): value for name, value in given.items()}
    return parse_read_options(BASE | lowered, streaming=streaming)


def test_defaults() -> None:
    assert parsed() == ReadOptions(("orders",), ClusterAddress("127.0.0.1:7401", 30.0))
    assert parsed(False) == parsed(True) == parsed()


def test_every_option() -> None:
    options = parsed(
        log=" orders, items ",
        startingOffsets="earliest",
        endingOffsets='{"orders": 42, "items": "latest"}',
        maxOffsetsPerTrigger="10",
        maxBytesPerTrigger="1000",
        minPartitions="3",
        maxRecordsPerPartition="7",
        failOnDataLoss="FALSE",
        readFrom="n2",
        timeout=" 2.5 ",
    )
    assert options == ReadOptions(
        ("orders", "items"),
        ClusterAddress("127.0.0.1:7401", 2.5),
        starting="earliest",
        ending={"orders": 42, "items": "latest"},
        offsets_max=10,
        bytes_max=1000,
        partitions_min=3,
        records_max=7,
        fail_on_data_loss=False,
        read_from="n2",
    )


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1700000000123", 1_700_000_000_123_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000_000),
        ("2023-11-14T23:13:20.000001+01:00", 1_700_000_000_000_001),
        ("2023-11-14", 1_699_920_000_000_000),
        ("20231114T00", 1_699_920_000_000_000),
        ("0", 0),
        ("020231114", 20_231_114_000),
    ],
)
def test_times(text: str, microseconds: int) -> None:
    assert parsed(startingTimestamp=text).starting == Moment(microseconds)
    assert parsed(endingTimestamp=text).ending == Moment(microseconds)


def test_a_path_takes_the_place_of_endpoints() -> None:
    options = parse_read_options({"path": "/data/n1", "log": "a*"}, streaming=False)
    assert options == ReadOptions(("a*",), path="/data/n1")


def test_load_names_the_log_if_there_are_endpoints() -> None:
    options = parse_read_options({"endpoints": "127.0.0.1:7401", "path": "orders"})
    assert options == parsed()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingOffset": "1"}, "no option startingoffset; did you mean startingOffsets?"),
        ({"endpoint": "h:1"}, "no option endpoint; did you mean endpoints?"),
        ({"topic": "x"}, "no option topic; there are endingOffsets, endingTimestamp, endpoints,"),
        ({"startingOffsets": "-5"}, "startingOffsets = '-5' is none of earliest, latest,"),
        ({"startingOffsets": "first"}, "startingOffsets = 'first' is none of"),
        ({"startingOffsets": '{"orders": -1}'}, "startingOffsets of orders = '-1' is none of"),
        ({"startingOffsets": '{"items": 1}'}, "names items, which is not read; log has orders"),
        ({"startingOffsets": '{"orders"}'}, "is not JSON"),
        ({"endingOffsets": "soon"}, "endingOffsets = 'soon' is none of"),
        (
            {"startingOffsets": "1", "startingTimestamp": "1"},
            "startingOffsets and startingTimestamp: give one",
        ),
        ({"endingTimestamp": "tomorrow"}, "'tomorrow' is neither ISO 8601 nor milliseconds"),
        (
            {"startingTimestamp": "20240131"},
            "startingTimestamp = '20240131' may be a day or milliseconds: write 2024-01-31",
        ),
        ({"endingTimestamp": "99999999"}, "write 9999-99-99, or 099999999"),
        ({"minPartitions": "0"}, "minPartitions = '0' is not a number above 0"),
        ({"maxRecordsPerPartition": "1.5"}, "maxRecordsPerPartition = '1.5' is not a number"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss = 'no' is neither true nor false"),
        (
            {"timeout": "soon"},
            "timeout = 'soon' is not a number of seconds above 0 and up to 86400",
        ),
        ({"timeout": "0"}, "timeout = 0.0 is not a number of seconds above 0"),
        ({"timeout": "-1"}, "timeout = -1.0 is not a number of seconds above 0"),
        ({"timeout": "nan"}, "timeout = nan is not a number of seconds above 0"),
        ({"timeout": "86401"}, "timeout = 86401.0 is not a number of seconds above 0 and up to"),
        ({"timeout": ""}, "timeout = '' is not a number of seconds above 0"),
        ({"endpoints": ""}, "endpoints is missing"),
        ({"endpoints": "nohost"}, "nohost"),
        ({"log": " , "}, "log is missing"),
        ({"path": "/data"}, "a cluster is read or a data directory"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parsed(**given)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("streaming", "given", "message"),
    [
        (True, {"endingOffsets": "5"}, "endingOffsets: a stream has no end"),
        (True, {"endingTimestamp": "5"}, "endingTimestamp: a stream has no end"),
        (False, {"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger: it is for streams"),
        (False, {"maxBytesPerTrigger": "5"}, "maxBytesPerTrigger: it is for streams"),
    ],
)
def test_what_only_the_other_takes_is_refused(
    streaming: bool, given: dict[str, str], message: str
) -> None:
    parsed(None, **given)
    parsed(not streaming, **given)
    with pytest.raises(InvalidArgument) as caught:
        parsed(streaming, **given)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": "orders"}, "load('orders') does not say where: write .option(\"endpoints\","),
        ({}, "endpoints is missing"),
        ({"log": "orders"}, "endpoints is missing"),
        ({"endpoints": "h:1"}, "log is missing"),
        ({"path": "/d", "log": "a", "readfrom": "n1"}, "readFrom: a data directory is one replica"),
        ({"path": "/d", "log": "a", "timeout": "1"}, "timeout: a data directory is read in place"),
    ],
)
def test_where_is_asked_for(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_read_options(given)
    assert message in str(caught.value)


def test_a_data_directory_is_no_stream() -> None:
    with pytest.raises(InvalidArgument, match="path: a data directory is read as a batch"):
        parse_read_options({"path": "/d", "log": "a"}, streaming=True)


def test_names_are_checked_against_any_list() -> None:
    check_names(["replaymismatch"], ["replayMismatch"])
    with pytest.raises(InvalidArgument, match="no option replay; there are a, b"):
        check_names(["replay"], ["b", "a"])
