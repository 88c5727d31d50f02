"""Ports of loopback that no other process is given while a cluster needs them."""

from __future__ import annotations

import random
import socket

__all__ = ["HOST", "Ports"]

HOST = "127.0.0.1"
# Below the range from which the kernel gives ports to programs that do not ask for one.
RANGE = range(20_000, 32_000)


class Ports:
    """Ports that are reserved until they are closed.

    Each is bound and not listened at: a node, which sets SO_REUSEADDR, can have it again and again;
    a program that looks for a free port without that option skips it, even while the node is down.
    """

    def __init__(self) -> None:
        self._reserved: list[socket.socket] = []

    def take(self, count: int) -> list[int]:
        """Reserve ``count`` ports that are free now."""
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
        except OSError:  # another process was faster
            one.close()
            return False
        self._reserved.append(one)
        return True
