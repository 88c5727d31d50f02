"""Disks for tests: one that forgets the writes that were not synced, and one that fails on
request."""
