"""How things are timed: fresh processes, repeated stretches, the machine they ran on."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def fresh(
    function: Callable[..., dict[str, Any]],
    *,
    timeout: float = 600,
    blas: int | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """`function(**arguments)` in a new process: nothing compiled, nothing cached, can be ended.

    Returns its dictionary with `shell`, the seconds from the shell's point of view (interpreter
    start and imports included); or `failed`, a sentence. `blas` is the number of BLAS threads
    in that process.
    """
    name = f"{function.__module__}:{function.__name__}"
    environment = dict(os.environ)
    if blas is not None:
        environment |= {"OPENBLAS_NUM_THREADS": str(blas), "OMP_NUM_THREADS": str(blas)}
    command = [sys.executable, "-m", "benchmarks._measure", name, json.dumps(arguments)]
    began = time.perf_counter()
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"ended after {timeout:g} s", "shell": timeout}
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return {"failed": lines[-1]}
    return {**json.loads(done.stdout.splitlines()[-1]), "shell": time.perf_counter() - began}


def sure(run: dict[str, Any]) -> dict[str, Any]:
    """A run that everything else is measured against: stops the benchmark when it failed."""
    if "failed" in run:
        raise RuntimeError(f"our own run failed: {run['failed']}")
    return run


def per_call(call: Callable[[], Any], calls: int, repeats: int = 7) -> float:
    """Seconds of one call: the least of several stretches, after one call to warm up."""
    call()
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, time.perf_counter() - began)
    return best / calls


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    packages = ("numpy", "scipy", "jax", "diffrax", "scikit-sundae", "torch")
    versions = []
    for package in packages:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"no {package}")
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "load before the run": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "packages": ", ".join(versions),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _worker(name: str, arguments: str) -> None:
    module, function = name.split(":")
    result = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    print(json.dumps(result))


if __name__ == "__main__":
    _worker(*sys.argv[1:])
