"""Every limit and timeout that has an answer when it is reached, with its default and its range.

One frozen object per section; a value outside its range is refused with the field and the range.
"""

from quorate.config.node import NetworkLimits, Server
from quorate.config.replica import Config, Limits, Storage, Timing
from quorate.config.section import KIB, MIB

__all__ = ["KIB", "MIB", "Config", "Limits", "NetworkLimits", "Server", "Storage", "Timing"]
