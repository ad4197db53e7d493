"""Tables, targets and how they are shown: on the terminal, as JSON, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """Rows of raw numbers; `columns` gives each column its format (`,d`, `.3g`, or `` for text)."""

    title: str
    columns: Mapping[str, str]
    rows: Sequence[Row]
    notes: Sequence[str] = ()

    def cells(self, row: Row) -> list[str]:
        return [shown(row.get(name), spec) for name, spec in self.columns.items()]


@dataclass(frozen=True)
class Target:
    """A figure to reach, beside what was measured. `met` is None when the run was too short."""

    what: str
    bound: str
    measured: Any
    met: bool | None
    spec: str = ".3g"


@dataclass
class Result:
    """One benchmark: its tables and its targets."""

    name: str
    question: str
    tables: list[Table] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return finite(asdict(self))


def shown(value: Any, spec: str) -> str:
    """A cell: numbers by their format, the rest as it is, nothing for None."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if spec == ",d":
        return f"{round(value):,}" if math.isfinite(value) else str(value)
    return format(value, spec) if spec else str(value)


def verdict(met: bool | None) -> str:
    return {True: "reached", False: "NOT reached", None: "not measured"}[met]


def finite(value: Any) -> Any:
    """The same value with non-finite numbers as None, so that any JSON reader takes it."""
    if isinstance(value, Mapping):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def show(result: Result, console: Any) -> None:
    """Print one benchmark."""
    from rich.table import Table as Grid

    console.rule(f"[bold]{result.name}")
    console.print(result.question)
    for table in result.tables:
        grid = Grid(title=table.title, title_justify="left", title_style="bold", pad_edge=False)
        for i, (name, spec) in enumerate(table.columns.items()):
            grid.add_column(
                name, justify="right" if spec else "left", overflow="fold", no_wrap=i == 0
            )
        for row in table.rows:
            grid.add_row(*table.cells(row))
        console.print()
        console.print(grid)
        for note in table.notes:
            console.print(f"  {note}", style="dim", highlight=False)
    if result.targets:
        grid = Grid(title="targets", title_justify="left", title_style="bold", pad_edge=False)
        for name in ("figure", "target", "measured", ""):
            grid.add_column(name)
        for target in result.targets:
            style = {True: "green", False: "red", None: "yellow"}[target.met]
            measured = shown(target.measured, target.spec)
            grid.add_row(target.what, target.bound, measured, verdict(target.met), style=style)
        console.print()
        console.print(grid)
    console.print()


def markdown(results: Sequence[Result], machine: Mapping[str, Any]) -> str:
    """All benchmarks as one Markdown page."""
    lines = [
        "# Measured",
        "",
        "Written by `python -m benchmarks --markdown FILE`; do not edit.",
        "",
    ]
    lines += [f"- {name}: {value}" for name, value in machine.items()] + [""]
    for result in results:
        lines += [f"## {result.name}", "", result.question, ""]
        if result.targets:
            lines += _grid(
                ["figure", "target", "measured", ""],
                ["", "", "", ""],
                [
                    [t.what, t.bound, shown(t.measured, t.spec), verdict(t.met)]
                    for t in result.targets
                ],
            )
        for table in result.tables:
            lines += [f"### {table.title}", ""]
            lines += _grid(
                list(table.columns),
                list(table.columns.values()),
                [table.cells(r) for r in table.rows],
            )
            lines += [f"- {note}" for note in table.notes] + ([""] if table.notes else [])
    return "\n".join(lines).rstrip() + "\n"


def _grid(heads: list[str], specs: list[str], rows: list[list[str]]) -> list[str]:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"

    rule = "|" + "|".join("---:" if spec else "---" for spec in specs) + "|"
    return [line(heads), rule, *map(line, rows), ""]
