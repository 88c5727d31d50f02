"""Offline tools: they inspect and verify data directories that no node uses, and write nothing."""
