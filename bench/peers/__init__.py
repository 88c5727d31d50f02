"""Other systems, each driven by the fastest client that makes sense for it."""

__all__: list[str] = []
