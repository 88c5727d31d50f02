"""One replica of one log: the engine that ties core, log, state and waiting callers together."""
