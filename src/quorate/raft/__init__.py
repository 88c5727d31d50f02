"""The consensus core: a pure function of (state, input).

It uses no clock, disk, socket, thread or logger: time is ticks, randomness is passed in, and events
are part of the output. The replica's engine drives it; the simulator drives the engine.
"""
