"""Ports of loopback that nobody else is given while a cluster needs them."""

from __future__ import annotations

import random
import socket

__all__ = ["HOST", "Ports"]

HOST = "127.0.0.1"
# Below what the kernel gives to those who do not ask for a port.
RANGE = range(20_000, 32_000)


class Ports:
    """Reserved until they are given back.

    Each is bound and not listened at: a node, which says SO_REUSEADDR, can have it again and again;
    whoever looks for a free port without saying so passes it by, also while the node is down.
    """

    def __init__(self) -> None:
        self._reserved: list[socket.socket] = []

    def take(self, count: int) -> list[int]:
        """Ports that are free now."""
        found: list[int] = []
        for port in random.sample(RANGE, len(RANGE)):
            if self._reserve(port):
                found.append(port)
            if len(found) == count:
                return found
        raise OSError(f"fewer than {count} ports of {RANGE} are free")

    def close(self) -> None:
        for one in self._reserved:
            one.close()
        self._reserved.clear()

    def _reserve(self, port: int) -> bool:
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                return False
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((HOST, port))
        except OSError:  # somebody was faster
            one.close()
            return False
        self._reserved.append(one)
        return True
