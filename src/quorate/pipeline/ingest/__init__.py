"""Ingest: the rows of files are appended to a log, each once."""
