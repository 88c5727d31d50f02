"""Spark jobs of which every part is killed again and again, and a count of the rows that they
wrote."""
