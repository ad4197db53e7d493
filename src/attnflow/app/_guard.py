"""Who may ask: this machine, this page, whoever has the launch link; and what a page may load."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from attnflow._errors import InputError, shown

MOST_BYTES = 64 * 1024
"""A request that changes something is a small JSON object."""

TOKEN = "x-attnflow-token"
"""The header that goes with anything that changes something; only our own page knows its value."""

_EMPTY = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
"""The hash of nothing: plotly.js adds one empty style element and fills it by the object model."""

POLICY = (
    "default-src 'none'; script-src 'self'; "
    f"style-src-elem 'self' {_EMPTY}; style-src-attr 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""No script but our own files: a label that slips through as markup could run nothing."""

PAGE_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""For a stored page or figure: it stands in an origin of its own and can ask us nothing."""

_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
    "content-security-policy": POLICY,
    "cache-control": "no-store",
}

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True)
class Access:
    """The secrets of one server, and the names by which it may be asked for."""

    hosts: frozenset[str]
    launch: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """Of the printed link: it may be opened again, in another browser too."""
    once: set[str] = field(default_factory=set, repr=False)
    """Of links that are good for one visit: a browser's arguments are seen by others here."""
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """The value of the cookie."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """What a page sends with anything that changes something."""
    cookie: str = "attnflow"
    """Cookies do not tell ports apart, so its name has the port."""

    @classmethod
    def at(cls, host: str, port: int) -> Access:
        return cls(hosts=hosts_of(host, port), cookie=f"attnflow-{port}")

    def admits(self, given: str) -> bool:
        """Whether a launch token is good; one that is good for one visit is used up."""
        if hmac.compare_digest(given.encode(), self.launch.encode()):
            return True
        found = next((t for t in self.once if hmac.compare_digest(given.encode(), t.encode())), "")
        self.once.discard(found)
        return bool(found)

    def one_visit(self) -> str:
        token = secrets.token_urlsafe(32)
        self.once.add(token)
        return token


def checked_address(host: str, *, network: bool) -> str:
    """The address to listen on; another than the loopback one only where that was said."""
    name = host.strip().removeprefix("[").removesuffix("]")
    if name == "localhost":
        return "127.0.0.1"
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        raise InputError("host", f"'{shown(host)}' is not an address such as 127.0.0.1") from None
    if address.is_unspecified:
        raise InputError(
            "host",
            f"{name} is every address of this machine; name the one that is meant, so that "
            "requests for other names can be turned down",
        )
    if not address.is_loopback and not network:
        raise InputError(
            "host",
            f"{name} can be reached from other machines; say so with --open-to-network, or leave "
            "it out (127.0.0.1)",
        )
    return str(address)


def hosts_of(host: str, port: int) -> frozenset[str]:
    """The values of the header Host that mean this server."""
    loopback = ipaddress.ip_address(host).is_loopback
    names = {"127.0.0.1", "localhost", "[::1]"} if loopback else set()
    names.add(literal(host))
    ports = {f":{port}"} | ({""} if port == 80 else set())
    return frozenset(name + end for name in names for end in ports)


def literal(host: str) -> str:
    """An address as it stands in a URL: `[::1]` for IPv6."""
    return f"[{host}]" if ":" in host else host


class Guard:
    """Stands before every route: nothing below is reached by a request that it refuses."""

    def __init__(self, app: Any, access: Access):
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        request = _Request(scope)
        refused = self.refusal(request)
        if refused is not None:
            return await _answer(send, *refused)
        if request.path == "/launch":
            return await self._launch(request, send)
        await self.app(scope, receive, _with_headers(send))

    def refusal(self, request: _Request) -> tuple[int, str] | None:
        """Status and sentence with which a request is turned down; None where it is good."""
        host = request.one("host")
        if host is None or host.lower() not in self.access.hosts:
            return 403, "This server answers to its own address only."
        origin = request.one("origin")
        if request.many("origin") and origin != f"http://{host.lower()}":
            return 403, "Another page may not ask."
        if request.method not in ("GET", "HEAD", "POST"):
            return 405, "GET or POST."
        opening = request.method == "GET" and request.path in ("/", "/launch")
        site = request.one("sec-fetch-site")
        if not opening and request.many("sec-fetch-site") and site not in ("same-origin", "none"):
            return 403, "Another page may not ask."
        if request.path == "/launch":
            return None
        if not hmac.compare_digest(
            request.cookie(self.access.cookie), self.access.session.encode()
        ):
            return (
                401,
                "Open the link that `attnflow explore` printed: it has the key to this page.",
            )
        return self._refused_change(request, origin) if request.method == "POST" else None

    def _refused_change(self, request: _Request, origin: str | None) -> tuple[int, str] | None:
        if origin is None:
            return 403, "A change says where it comes from (Origin)."
        kind = (request.one("content-type") or "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return 415, "A change is JSON (Content-Type: application/json)."
        given = (request.one(TOKEN) or "").encode()
        if not hmac.compare_digest(given, self.access.token.encode()):
            return 403, f"A change has this page's token ({TOKEN})."
        length = request.one("content-length")
        if length is None or not length.isdecimal():
            return 411, "A change says its length."
        return (413, "A change is a small JSON object.") if int(length) > MOST_BYTES else None

    async def _launch(self, request: _Request, send: Send) -> None:
        given = parse_qs(request.query).get("token", [""])
        if request.method != "GET" or len(given) != 1 or not self.access.admits(given[0]):
            return await _answer(send, 401, "This link is not, or no longer, the right one.")
        cookie = f"{self.access.cookie}={self.access.session}; Path=/; HttpOnly; SameSite=Strict"
        # Not a redirect: one that begins elsewhere (a mail, a chat) would not carry the cookie on.
        page = (
            b"<!doctype html><meta charset=utf-8><title>attnflow</title>"
            b"<script src=/static/launch.js></script><p><a href=/>Go on to the explorer</a></p>"
        )
        more = [(b"set-cookie", cookie.encode()), (b"content-type", b"text/html; charset=utf-8")]
        await _answer(send, 200, page, more)


class _Request:
    """The few things that decide: a header that comes twice counts as none."""

    def __init__(self, scope: Scope):
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: str = scope["query_string"].decode("latin-1")
        self._headers = [(k.decode("latin-1").lower(), v) for k, v in scope["headers"]]

    def many(self, name: str) -> list[str]:
        return [value.decode("latin-1") for key, value in self._headers if key == name]

    def one(self, name: str) -> str | None:
        found = self.many(name)
        return found[0] if len(found) == 1 else None

    def cookie(self, name: str) -> bytes:
        pairs = [p.strip().partition("=") for line in self.many("cookie") for p in line.split(";")]
        found = [value for key, _, value in pairs if key == name]
        return found[0].encode() if len(found) == 1 else b""


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            own = {key.decode("latin-1").lower() for key, _ in message["headers"]}
            more = [(k.encode(), v.encode()) for k, v in _HEADERS.items() if k not in own]
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return sending


async def _answer(
    send: Send, status: int, body: str | bytes, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    content = body.encode() if isinstance(body, str) else body
    kind = [(b"content-type", b"text/plain; charset=utf-8")]
    length = [(b"content-length", str(len(content)).encode())]
    start = {"type": "http.response.start", "status": status, "headers": (headers or kind) + length}
    await _with_headers(send)(start)
    await send({"type": "http.response.body", "body": content})
