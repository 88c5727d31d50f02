"""Power cuts on a real file system: what was reported as flushed must be there afterwards."""
