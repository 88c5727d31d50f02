"""The logs of a node: the catalog that lists them, their making and deletion, their replicas."""
