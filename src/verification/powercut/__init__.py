"""Power cuts on a real file system: everything that was reported as flushed must be there
afterwards."""
