"""Benchmarks: ``python -m bench`` measures quorate beside the bare pipe and beside its peers."""

__all__: list[str] = []
