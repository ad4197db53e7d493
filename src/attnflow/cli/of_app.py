"""The command of the explorer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import tyro

from attnflow.cli.speaking import Flag, print_json


def explore(
    runs: tyro.conf.Positional[Path] = Path("runs"),
    host: str = "127.0.0.1",
    port: int | None = None,
    open_to_network: Flag = False,
    no_browser: Flag = False,
    json: Flag = False,
) -> int:
    """Look at runs, sweeps and ledgers in a browser, also while they are being written.

    The page is served on this machine alone, and the printed link is the key to it. Ctrl-C ends it.

    Args:
        runs: a folder of runs, or one run.
        host: the address to listen on; another than the loopback one needs --open-to-network.
        port: the port (default: 8642, or a free one).
        open_to_network: let other machines reach it; whoever reads the network reads the link too.
        no_browser: only print the link.
        json: print the link as one JSON object.
    """
    from attnflow.app import serve

    def ready(server: Any) -> None:
        if json:
            print_json({"url": server.url, "address": server.address, "runs": str(runs)})
        else:
            print(f"exploring {runs}/ at\n\n  {server.url}\n\nCtrl-C ends it", flush=True)
        sys.stdout.flush()
        if open_to_network:
            print(
                f"warning: {server.address} can be reached from other machines, and plain HTTP "
                "can be read on the way: whoever sees the link can start solves here",
                file=sys.stderr,
                flush=True,
            )
        if not no_browser and not json:
            import webbrowser

            # The arguments of a browser are seen by others here: this link is good once.
            webbrowser.open(f"{server.address}/launch?token={server.access.one_visit()}")

    serve(runs, host=host, port=port, network=open_to_network, ready=ready)
    return 0
