"""Focus and dilution: one-layer attention on a Markov chain (arXiv 2605.01199)."""
