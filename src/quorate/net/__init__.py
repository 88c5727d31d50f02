"""Sockets: whole frames in and out, who is let in, and the links between nodes. asyncio only."""
