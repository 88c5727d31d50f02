"""The replicated state: what the log means. Pure: the same entries give the same state anywhere."""
