"""A series of checkpoints as a run: its stages and figures. It is read, not solved."""
