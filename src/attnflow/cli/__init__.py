"""The command line: it speaks to a person; with `--json` it speaks to a program.

Nothing heavy is imported before a command needs it: `attnflow --help` loads neither JAX nor SciPy.
Exit status 0: done. 1: a claim came out as a surprise, or a run did not reach its end. 2: bad
usage or input, said in one sentence on standard error. 130: interrupted.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from attnflow import __version__, studies
from attnflow._errors import InputError, nearest
from attnflow.cli import of_app, of_checkpoints, of_corpus, of_studies

Command = Callable[..., int]

COMMANDS: dict[str, Command | tuple[str, dict[str, Command]]] = {
    "list": of_studies.list_studies,
    "config": of_studies.config,
    "run": of_studies.run,
    "sweep": of_studies.sweep,
    "check": of_studies.check,
    "report": of_studies.report,
    "runs": of_studies.runs,
    "show": of_studies.show,
    "checkpoints": (
        "Read, audit and compare checkpoints of a real model.",
        {"audit": of_checkpoints.audit, "compare": of_checkpoints.compare},
    ),
    "train-series": of_checkpoints.train_series,
    "corpus": ("Count a text: what the first steps of training read from it.", of_corpus.COMMANDS),
    "explore": of_app.explore,
}
"""The commands; a group of commands (`attnflow GROUP COMMAND`) is its title and a table."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # Before NumPy loads: on matrices of this size a threaded BLAS waits for its threads, and on a
    # busy machine fifty times longer than it computes. Whoever sets the variable is heeded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if arguments in (["--version"], ["-V"]):
        print(f"attnflow {__version__}")
        return 0
    from attnflow.runs import stoppable
    from attnflow.runs._signals import own_process

    own_process()
    with stoppable():
        try:
            return _dispatch(arguments)
        except InputError as error:
            print(str(error), file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130
        except BrokenPipeError:  # the reader of a pipe has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0


def _dispatch(arguments: list[str]) -> int:
    prog, words = (
        "attnflow",
        (
            "A laboratory for how attention is learned: gradient flows of small transformers, "
            "and every theorem an executable check."
        ),
    )
    table = {name: c if callable(c) else _titled(c[0]) for name, c in COMMANDS.items()}
    group = COMMANDS.get(arguments[0]) if arguments else None
    if isinstance(group, tuple):
        prog, (words, table), arguments = f"attnflow {arguments[0]}", group, arguments[1:]
    if arguments and not arguments[0].startswith("-") and arguments[0] not in table:
        raise InputError("command", f"{arguments[0]!r}; {nearest(arguments[0], table)}")
    return tyro.extras.subcommand_cli_from_dict(
        table, prog=prog, description=words, args=_understood(arguments, table) or ["--help"]
    )


def _titled(words: str) -> Command:
    """A group's line in the help."""

    def group() -> int:
        return 0

    group.__doc__ = words
    return group


def _understood(arguments: list[str], commands: dict[str, Callable[..., Any]]) -> list[str]:
    """The arguments with the files a study reads as config keys: `--text F` is `--set text=F`."""
    no_study = len(arguments) < 2 or arguments[1].startswith("-")
    if no_study or arguments[0] not in ("run", "check"):
        return arguments
    command, study, *rest = arguments
    known = {n.replace("_", "-") for n in inspect.signature(commands[command]).parameters}
    known = {f"--{name}" for name in (known - {"study", "overrides"}) | {"set", "help"}}
    given: dict[str, str] = {}
    left: list[str] = []
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        if not option.startswith("--") or option in known:
            left.append(option + equals + value)
            continue
        inputs = studies.inputs(study)
        if option[2:] not in inputs:
            words = nearest(option, [*known, *(f"--{key}" for key in inputs)])
            raise InputError(option[2:], f"{study} has no such option; {words}")
        given[option[2:]] = value if equals else rest.pop(0) if rest else ""
    for key in given:
        if any(word.startswith(f"{key}=") for word in left):
            raise InputError(key, f"--{key} and --set {key}=...; keep one of the two")
        study = studies.inputs(study)[key][0]
    words = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    return [command, study, *left, *words]
