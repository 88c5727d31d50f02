"""Pipelines from a log through Spark: decode, check, transform, write, with dead letters.

::

    @pipeline(source="log:orders", decode="json", schema="id long", sink="log:paid")
    def paid(df):
        return df.where("id > 0")
"""

from quorate.pipeline.definition import Pipeline, pipeline

__all__ = ["Pipeline", "pipeline"]
