"""Disks: what a replica must find again after a crash, and the steps that get it there."""
