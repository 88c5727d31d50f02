"""A replicated commit log for Python and Spark, with Raft underneath."""

__version__ = "0.1.0.dev0"
