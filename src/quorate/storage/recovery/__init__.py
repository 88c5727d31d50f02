"""Recovery: the open of a log after its process ended, also by a crash, and its result."""
