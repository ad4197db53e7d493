"""Work for sweeps; at the top of a module, so that spawned processes find it."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from attnflow._errors import InputError
from attnflow.runs import cells, sweep


def fine(config):
    x = config.get("x", 1.0)
    return {
        "status": "finished",
        "sentence": "done",
        "run": f"cell-{config.get('seed')}",
        "summary": {"loss": 2.0 * x**3, "plateaus": [{"loss": x + config.get("seed", 0)}]},
    }


def troubled(config):
    seed = config["seed"]
    if seed == 1:
        os._exit(9)
    if seed == 2:
        raise InputError("dim", "0 is not a width")
    if seed == 3:
        raise ValueError("first line\nsecond line")
    if seed == 4:
        return "not a mapping"
    if seed == 5:
        return {"summary": {}, "lock": open(os.devnull)}  # cannot be pickled
    return fine(config)


def slow(config):
    if config["seed"] > 0:
        time.sleep(60)
    return fine(config)


def interrupt_parent(parent, done, total, result):
    """As the terminal's Ctrl-C: here only to the parent, whose children then are ended."""
    os.kill(parent, signal.SIGINT)


def forever(folder, config):
    Path(folder, str(os.getpid())).touch()
    while True:  # deaf to polite requests, as compiled code is
        with suppress(KeyboardInterrupt):
            time.sleep(600)


if __name__ == "__main__":
    from attnflow.runs import _sweep, stoppable

    _sweep._GRACE = 0.2
    for each in (signal.SIGINT, signal.SIGHUP):  # also where the tests were started with nohup
        signal.signal(each, signal.SIG_DFL if each != signal.SIGINT else signal.default_int_handler)
    if len(sys.argv) > 1:
        with stoppable():
            sweep(cells({}, "0:2"), partial(forever, sys.argv[1]), workers=2)
    progress = partial(interrupt_parent, os.getpid())
    for result in sweep(cells({}, "0:6"), slow, workers=2, progress=progress):
        print(result.cell.seed, result.ok, result.status, flush=True)
