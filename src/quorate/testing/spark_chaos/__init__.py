"""Spark jobs of which every part is killed again and again; and what became of the rows."""
