"""``quorate demo``: a shop's orders go through real nodes and Spark jobs, with kills.

Every order is made from its number alone, so the expected result is known to the record.
"""
