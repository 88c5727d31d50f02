"""A node: its settings, its logs, and whom it serves."""
