"""A whole cluster in one thread: virtual time, network and disks, every choice recorded.

The engines, flush plans and recovery in here are the real ones; only clock, network and disk are
simulated. One seed gives one history, and the same one every time.
"""
