"""The client: it finds leaders, sends requests, retries where that is safe, and reads answers."""
