"""Connections that carry whole frames, the listener that admits them, and the links between nodes.

The only I/O library here is asyncio.
"""
