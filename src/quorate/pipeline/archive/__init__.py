"""Archives of logs in Parquet files: they are written, extended and compared with their log."""
