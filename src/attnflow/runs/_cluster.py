"""A cluster as an executor: dask.distributed by the address of its scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from attnflow._errors import InputError, shown

PATIENCE = 15.0
"""Seconds to wait for a scheduler to answer."""


@contextmanager
def on_cluster(address: str) -> Iterator[Executor]:
    """The workers of a dask scheduler (`tcp://host:8786`) as an executor for `sweep`.

    A cell whose worker dies is given to another one, where it goes on from its last checkpoint:
    the folder of the sweep must be on a disk that all of them see. Give each worker one thread.
    """
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise InputError(
            "cluster", 'dask.distributed is not installed; pip install "attnflow[sweep]"'
        ) from None
    try:
        client = Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError, TimeoutError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            "cluster", f"no scheduler answers at '{shown(address)}' ({shown(said, 90)})"
        ) from None
    try:
        # Not pure: two equal cells are two cells, and a result is never taken from another sweep.
        yield client.get_executor(pure=False)
    finally:
        client.close()
