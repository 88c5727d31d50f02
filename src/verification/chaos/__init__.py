"""Real nodes under real faults: clients write down every answer, and a checker judges them
afterwards."""
