"""Tools that try to break quorate: the simulator, scenario files and planted bugs."""
