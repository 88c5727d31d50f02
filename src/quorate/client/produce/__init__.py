"""Producers: records gathered into numbered batches, sent in order, each with its delivery."""
