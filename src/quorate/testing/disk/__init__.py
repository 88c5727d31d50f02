"""Disks for tests: one that forgets what was not synced, and one that fails when told to."""
