"""Sinks for tests."""

from __future__ import annotations

from attnflow.flows.sinks import joined


class Stored:
    """A sink that can be handed to a second run: keeps rows up to its last checkpoint."""

    def __init__(self):
        self.segments, self.kept, self.last = [], 0, None

    def begin(self, shape):
        del self.segments[self.kept :]
        return self.last

    def flush(self, segment):
        self.segments.append(segment)

    def checkpoint(self, checkpoint):
        self.last, self.kept = checkpoint, len(self.segments)

    def collect(self):
        return joined(self.segments)


class Interrupted(Stored):
    """A sink that is full after some checkpoints: a process that was killed."""

    def __init__(self, after):
        super().__init__()
        self.after = after

    def checkpoint(self, checkpoint):
        super().checkpoint(checkpoint)
        self.after -= 1
        if self.after == 0:
            raise KeyboardInterrupt
