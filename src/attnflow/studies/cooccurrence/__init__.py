"""Word co-occurrence: attention under a linear MLP, two phases, automatic balancing."""
