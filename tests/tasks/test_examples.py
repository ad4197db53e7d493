"""The examples in the docstrings of the tasks give what they print."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from attnflow import tasks

NAMES = sorted(module.name for module in pkgutil.iter_modules(tasks.__path__))


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_run(name):
    result = doctest.testmod(importlib.import_module(f"attnflow.tasks.{name}"))
    assert result.failed == 0
