"""Focus and dilution on real text (arXiv 2605.01199, Section 4.2)."""
