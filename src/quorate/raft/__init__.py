"""The consensus core: a pure function of (state, input).

No clock, disk, socket, thread or log line in here: time is ticks, randomness is passed in, and
what happened is in the output. The replica's engine drives it; the simulator drives the engine.
"""
