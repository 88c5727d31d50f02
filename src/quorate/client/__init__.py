"""Speaking to a cluster: who leads, what may be sent again, what an answer means."""
