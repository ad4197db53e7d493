"""`python -m benchmarks [NAME ...] [--quick] [--json FILE] [--markdown FILE]`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

from rich.console import Console

from benchmarks._measure import machine
from benchmarks._tables import Result, markdown, show

NAMES = (
    "waiting",
    "population_flow",
    "right_hand_side",
    "driver",
    "engines",
    "gram",
    "training",
    "mixture",
    "cooccurrence",
    "saddles",
    "checkpoints",
    "corpus",
    "explore",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; or all")
    parser.add_argument("--quick", action="store_true", help="short stretches: rough numbers")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the raw numbers")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the tables")
    given = parser.parse_args()
    names = [name.replace("-", "_") for name in given.names] or list(NAMES)
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark named {unknown[0]}; there are {', '.join(NAMES)}")

    console = Console(width=None if sys.stdout.isatty() else 150)
    facts = machine()
    for name, value in facts.items():
        console.print(f"{name}: {value}", highlight=False)
    if facts["load before the run"] > 0.5:
        console.print("[yellow]other processes are busy: read ratios, not seconds[/yellow]")
    if given.quick:
        console.print("[yellow]quick: short stretches, rough numbers[/yellow]")
        facts["quick"] = "short stretches, rough numbers"
    results: list[Result] = []
    began = time.perf_counter()
    for name in names:
        result = importlib.import_module(f"benchmarks.{name}").run(quick=given.quick)
        show(result, console)
        results.append(result)
        # After each benchmark, so that an interrupted run keeps what it measured.
        if given.json:
            whole = {"machine": facts, "benchmarks": [r.as_dict() for r in results]}
            given.json.write_text(json.dumps(whole, indent=1) + "\n")
        if given.markdown:
            given.markdown.write_text(markdown(results, facts))
    console.print(f"{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
