"""Readers: records in order, fetched ahead, from any replica; as objects or as Arrow."""
