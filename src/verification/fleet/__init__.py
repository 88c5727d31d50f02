"""Simulates whole nodes: handshakes, manifests, the catalog and several logs on each of them."""
