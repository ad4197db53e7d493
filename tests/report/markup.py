"""A strict enough reading of HTML: tags that close, ids, resources, text."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Markup(HTMLParser):
    """Every tag with its attributes; `problems` names what does not nest or repeats an id."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.problems: list[str] = []
        self.words = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.problems += [f"<{tag}> is not closed" for tag in self._open]
        ids = self.ids
        self.problems += [
            f"id {i!r} occurs twice" for i in sorted({i for i in ids if ids.count(i) > 1})
        ]

    @property
    def ids(self) -> list[str]:
        return [a["id"] for _, a in self.tags if a.get("id")]  # type: ignore[misc]

    @property
    def resources(self) -> list[str]:
        """Values of attributes from which a browser loads or to which it goes."""
        names = ("src", "href", "xlink:href", "action", "data", "poster", "srcset")
        return [v for _, a in self.tags for n, v in a.items() if n in names and v is not None]

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self._open or self._open[-1] != tag:
            self.problems.append(f"</{tag}> closes {self._open[-1:] or 'nothing'}")
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data):
        self.words += data
