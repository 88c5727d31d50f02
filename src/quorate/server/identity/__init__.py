"""Identity: which peers this node trusts, which data directories are theirs, whom it has met."""
