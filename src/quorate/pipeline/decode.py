"""The decoding of records to rows: values are decoded and checked, or refused with a reason.

All steps are Spark's own expressions: rows never leave Java. A record is refused, not dropped: it
keeps its place in the frame, with a code and a message.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType

from quorate.errors import CheckFailed, DecodeFailed, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from quorate.pipeline.definition import Decoding

__all__ = [
    "CORRUPT",
    "REFUSAL",
    "SOURCE",
    "SOURCE_COLUMNS",
    "VALUE",
    "OneJson",
    "accepted",
    "checked",
    "decoded",
    "parse_schema",
    "refused",
]

# The columns that are read from a log for this.
SOURCE_COLUMNS = (
    "key binary, value binary, log string, offset long, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)
# Columns beside those of the schema: the source of a record, its value as it was, and the refusal:
# null if the record is accepted.
SOURCE, VALUE, REFUSAL = "_source", "_value", "_refusal"
# Columns of the parser: its result, and the text that Spark could not parse.
_PARSED, CORRUPT = "_parsed", "_corrupt"
_OWN = (SOURCE, VALUE, REFUSAL, _PARSED, CORRUPT)
APPEND_TIME = "appendTime"
_OF_SOURCE = ("log", "offset", "key", "timestamp", "headers")

# The most characters of a value that a message shows.
SHOWN_MAX = 120


def parse_schema(text: str) -> StructType:
    """The columns that ``text`` declares in Spark's DDL. Raises InvalidArgument for other text."""
    try:
        schema = StructType.fromDDL(text)
    except PySparkException as error:
        why = " ".join(str(error).partition("== SQL ==")[0].split()).partition("SQLSTATE")[0]
        raise InvalidArgument(
            f'schema = {text!r} is not a schema such as "id long, amount double": {why.strip(" .")}'
        ) from None
    if not isinstance(schema, StructType) or not schema.fields:
        raise InvalidArgument(f'schema = {text!r} has no columns; write "id long, amount double"')
    names = [name.lower() for name in schema.fieldNames()]
    for name in names:
        if name in _OWN:
            raise InvalidArgument(f"schema: {name} is a column that a pipeline has already")
        if names.count(name) > 1:
            raise InvalidArgument(f"schema: column {name} is there twice")
    return schema


def decoded(records: DataFrame, decode: Decoding, schema: StructType | None) -> DataFrame:
    """The columns of the schema, or ``value`` for text and raw, then _source, _value, _refusal.

    ``records`` has SOURCE_COLUMNS, and perhaps appendTime, which becomes part of _source. The
    columns of a refused record have no meaning.
    """
    more = [name for name in records.columns if name == APPEND_TIME]
    source = F.struct(*_OF_SOURCE, *more).alias(SOURCE)
    parsed, refusal, columns = _READERS[decode](schema or StructType())
    # A parser works once for each record: a result that is used more than once stays a column.
    frame = records.select(source, F.col("value").alias(VALUE), parsed.alias(_PARSED))
    return frame.select(*columns, SOURCE, VALUE, refusal.alias(REFUSAL))


def checked(frame: DataFrame, checks: Mapping[str, str]) -> DataFrame:
    """The frame in which a record that fails a check is refused, by the first check that it
    fails."""
    failed = [
        F.when(
            ~F.coalesce(F.expr(condition).cast("boolean"), F.lit(False)),
            _refusal(
                CheckFailed.code,
                F.concat(
                    F.lit(f"{name}: {condition} is "),
                    F.coalesce(F.expr(condition).cast("string"), F.lit("null")),
                    F.lit(" for "),
                    _shown(F.col(VALUE)),
                ),
            ),
        )
        for name, condition in checks.items()
    ]
    return frame.withColumn(REFUSAL, F.coalesce(F.col(REFUSAL), *failed)) if failed else frame


def accepted(frame: DataFrame) -> DataFrame:
    """The rows that a transformation sees."""
    return frame.where(F.col(REFUSAL).isNull()).drop(VALUE, REFUSAL)


def refused(frame: DataFrame) -> DataFrame:
    return frame.where(F.col(REFUSAL).isNotNull()).select(SOURCE, VALUE, REFUSAL)


class OneJson:
    """The parser of a text that has to be one JSON value, proved by the same parse that reads it.

    By itself Spark would take the first of several values, and of a list, and ignore the text after
    it, such as a brace too many. So the text is put into a list, with a mark behind it. List and
    mark are named by a random word which no text can know. Most texts cannot close the list, since
    they have no bracket: for them the mark comes after the list. For the others it is an item of
    the list, which costs more: a text that closes the list has lost the mark, and cannot open that
    list again.
    """

    def __init__(self, kind: StructType | StringType) -> None:
        """Make a parser of ``kind``: an object with these fields, or, as text, any value."""
        self._word = f"w{secrets.token_hex(8)}"
        self._after = f"after_{self._word}"
        self._item = f'{{"{self._word}":true}}'
        self._kind = kind

    def parse(self, text: Column) -> Column:
        """The result of the parse, which the other methods take: it goes into a column of its
        own."""
        item: StructType | StringType = self._kind
        if isinstance(item, StructType):
            item = StructType([*item.fields, StructField(self._word, BooleanType())])
        fields = [
            StructField(self._word, ArrayType(item)),
            StructField(self._after, BooleanType()),
            StructField(CORRUPT, StringType()),
        ]
        end = F.when(F.contains(text, F.lit("]")), F.lit(f",{self._item}]}}")).otherwise(
            F.lit(f'],"{self._after}":true}}')
        )
        within = F.concat(F.lit(f'{{"{self._word}":['), text, end)
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
        return F.from_json(within, StructType(fields), options)

    def ended(self, parsed: Column) -> Column:
        """True if the parser came to the mark: the text before it has values, and no other text."""
        items = parsed[self._word]
        last = F.get(items, F.size(items) - 1)
        if isinstance(self._kind, StructType):
            return F.coalesce(parsed[self._after], last[self._word], F.lit(False))
        return F.coalesce(parsed[self._after], last == self._item, F.lit(False))

    def alone(self, parsed: Column) -> Column:
        """True if the text has exactly one value."""
        marks = F.when(parsed[self._after].isNull(), 1).otherwise(0)
        return F.coalesce(F.size(parsed[self._word]) - marks == 1, F.lit(False))

    def proved(self, parsed: Column) -> Column:
        """True if the text is one JSON value, and of the kind. After an error Spark goes on, as if
        there had been none, and may well come to the mark."""
        sound = parsed[CORRUPT].isNull()
        return F.coalesce(sound & self.ended(parsed) & self.alone(parsed), F.lit(False))

    def value(self, parsed: Column) -> Column:
        """The first value of the text."""
        return F.get(parsed[self._word], F.lit(0))


# -- one reader for each decoding ----------------------------------------------------------------
# A reader has the parsed record, its refusal, and the columns of the row.

Reading = tuple["Column", "Column", list["Column"]]


def _raw(_: StructType) -> Reading:
    return F.col("value"), _none(), [F.col(_PARSED).alias("value")]


def _text(_: StructType) -> Reading:
    return F.col("value").cast("string"), _not_text(), [F.col(_PARSED).alias("value")]


def _json(schema: StructType) -> Reading:
    one = OneJson(_lenient(schema))
    text = F.col("value").cast("string")
    parsed = F.col(_PARSED)
    row = one.value(parsed)
    refusal = F.coalesce(
        _not_text(),
        _empty(),
        F.when(parsed[CORRUPT].isNotNull(), _decode_refusal(_json_fault(schema, row))),
        F.when(~one.ended(parsed), _decode_refusal(_said("malformed JSON"))),
        F.when(~one.alone(parsed), _decode_refusal(_said("more than one JSON value"))),
        F.when(row.isNull(), _decode_refusal(_said("no object"))),
        *_nulls(schema, row),
    )
    return one.parse(F.when(F.is_valid_utf8(text), text)), refusal, _columns(schema, row)


def _csv(schema: StructType) -> Reading:
    whole = StructType([*_lenient(schema).fields, StructField(CORRUPT, StringType())])
    text = F.col("value").cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    parsed = F.from_csv(F.when(F.is_valid_utf8(text), text), whole.toDDL(), options)
    refusal = F.coalesce(
        _not_text(),
        _empty(),
        F.when(
            F.col(_PARSED)[CORRUPT].isNotNull(),
            _decode_refusal(_said("it does not fit the schema")),
        ),
        *_nulls(schema, F.col(_PARSED)),
    )
    return parsed, refusal, _columns(schema, F.col(_PARSED))


_READERS = {"raw": _raw, "text": _text, "json": _json, "csv": _csv}


def _lenient(schema: StructType) -> StructType:
    """The schema without NOT NULL: ``_nulls`` checks that, since its message can name the
    column."""
    return StructType([StructField(one.name, one.dataType) for one in schema])


def _columns(schema: StructType, row: Column) -> list[Column]:
    return [row[one.name].alias(one.name) for one in schema]


# -- refusals ------------------------------------------------------------------------------------


def _refusal(code: str, message: Column) -> Column:
    return F.struct(F.lit(code).alias("code"), message.alias("message"))


def _decode_refusal(message: Column) -> Column:
    return _refusal(DecodeFailed.code, message)


def _none() -> Column:
    return F.lit(None).cast("struct<code:string,message:string>")


def _not_text() -> Column:
    fault = F.concat(F.lit("not UTF-8: "), F.hex(F.substring(F.col(VALUE), 1, SHOWN_MAX // 4)))
    return F.when(~F.is_valid_utf8(F.col(VALUE).cast("string")), _decode_refusal(fault))


def _empty() -> Column:
    blank = F.trim(F.col(VALUE).cast("string")) == ""
    return F.when(blank, _decode_refusal(F.lit("the value is empty")))


def _nulls(schema: StructType, row: Column) -> list[Column]:
    return [
        F.when(
            row[one.name].isNull(),
            _decode_refusal(_said(f"column {one.name} is null, and NOT NULL")),
        )
        for one in schema
        if not one.nullable
    ]


def _json_fault(schema: StructType, row: Column) -> Column:
    """The fault of a text that Spark could not parse: malformed, or a field of another type. Only
    evaluated for such a text."""
    text = F.col(VALUE).cast("string")
    values = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    wrong = [
        F.when(
            row[one.name].isNull() & _field(text, one.name).isNotNull(),
            F.concat(
                F.lit(f"column {one.name} is "),
                _shortened(_field(text, one.name)),
                F.lit(f", not {one.dataType.simpleString()}"),
            ),
        )
        for one in schema
    ]
    return F.coalesce(
        F.when(values.isNull(), _said("malformed JSON")),
        *wrong,
        _said("it does not fit the schema"),
    )


def _field(text: Column, name: str) -> Column:
    return F.get_json_object(text, f"$['{name}']")


def _said(what: str) -> Column:
    return F.concat(F.lit(f"{what}: "), _shown(F.col(VALUE)))


def _shown(value: Column) -> Column:
    """The value as a message shows it: text, or its bytes in hexadecimal."""
    text = value.cast("string")
    return F.when(F.is_valid_utf8(text), _shortened(text)).otherwise(
        F.hex(F.substring(value, 1, SHOWN_MAX // 4))
    )


def _shortened(text: Column) -> Column:
    cut = F.concat(F.substring(text, 1, SHOWN_MAX), F.lit("…"))
    return F.when(F.length(text) > SHOWN_MAX, cut).otherwise(text)
