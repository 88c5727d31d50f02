"""The node process: its settings, its logs, and its connections with peers and clients."""
