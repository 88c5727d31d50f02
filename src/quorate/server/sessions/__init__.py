"""Connections to a node: sessions of clients with their limits and answers, links of peers."""
