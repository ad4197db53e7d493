"""The server: the routes behind the guard, on an address of this machine."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnflow._errors import InputError
from attnflow.app._guard import Access, Guard, checked_address, literal
from attnflow.app._jobs import Jobs
from attnflow.app._library import Library

PORT = 8642
"""Where the explorer is when that is free, so that addresses of views stay good."""


@dataclass
class Server:
    """An explorer on an address: `url` is its launch link."""

    library: Library
    host: str = "127.0.0.1"
    port: int = 0
    socket: socket.socket = field(init=False, repr=False)
    access: Access = field(init=False, repr=False)
    jobs: Jobs = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.socket = _bound(self.host, self.port)
        self.port = self.socket.getsockname()[1]
        self.access = Access.at(self.host, self.port)
        self.jobs = Jobs(self.library)

    @property
    def address(self) -> str:
        return f"http://{literal(self.host)}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.address}/launch?token={self.access.launch}"

    @property
    def app(self) -> Any:
        """The whole of it as an ASGI application."""
        from attnflow.app._routes import routes

        return Guard(routes(self.library, self.jobs, self.access), self.access)

    def run(self, ready: Callable[[], None] | None = None) -> None:
        """Serve until it is stopped; solves that it started are then stopped too, resumably."""
        import uvicorn

        config = uvicorn.Config(
            self.app,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=2,
        )
        server = uvicorn.Server(config)
        if ready is not None:
            ready()
        try:
            server.run(sockets=[self.socket])
        finally:
            self.jobs.close()
            self.socket.close()


def serve(
    folder: str | Path = "runs",
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    network: bool = False,
    ready: Callable[[Server], None] | None = None,
) -> None:
    """Serve the explorer of a folder of runs until Ctrl-C; `ready` is called with the server."""
    for name in ("fastapi", "uvicorn", "plotly"):
        if importlib.util.find_spec(name) is None:
            raise InputError("explore", f'needs {name}; pip install "attnflow[app]"')
    host = checked_address(host, network=network)
    if port is not None and not (isinstance(port, int) and 0 <= port < 65536):
        raise InputError("port", f"{port}; a port is a whole number from 0 (any free one) to 65535")
    library = Library(folder)
    try:
        server = Server(library, host, PORT if port is None else port)
    except InputError:
        if port is not None:
            raise
        server = Server(library, host, 0)
    server.run(None if ready is None else lambda: ready(server))


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens there, or the sentence why not."""
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(64)
    except OSError as error:
        found.close()
        raise InputError("port", f"{port} at {host}: {error.strerror or error}") from None
    return found
