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
