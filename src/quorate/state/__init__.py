"""The replicated state of a log. It is pure: the same entries give the same state on any node."""
