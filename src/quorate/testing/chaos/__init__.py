"""Real nodes under real faults: load that writes down what it was told, and a checker after it."""
