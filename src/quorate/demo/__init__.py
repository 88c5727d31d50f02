"""What ``quorate demo`` runs: a shop's orders through real nodes and real Spark jobs, with kills.

Every order is made from its number alone, so what has to come out is known to the record.
"""
