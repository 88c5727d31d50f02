"""Planted bugs: the proof that the simulator would notice if a rule were broken.

A mutant is a substitution in the text of one source file, applied to a copy. The package itself
holds no switch for any of them.
"""
