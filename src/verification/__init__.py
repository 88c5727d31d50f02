"""The tools that try to break quorate: simulators, planted bugs, checkers, real faults.

They are not installed: ``make help`` lists the commands.
"""
