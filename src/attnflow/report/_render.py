"""The templates: jinja2 with everything escaped, and a page that may load nothing from outside."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from attnflow.claims import mathematics


def render(template: str, **values: Any) -> str:
    """A template of this package filled with values; text is escaped, `Markup` is not."""
    return _templates().get_template(template).render(**values)


def text(name: str) -> str:
    """A file of the templates' folder as it is."""
    return resources.files("attnflow.report").joinpath("templates", name).read_text("utf-8")


@functools.cache
def _templates() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.FunctionLoader(text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["math"] = lambda words: Markup(mathematics.html(words))
    script = text("page.js")
    found.globals.update(
        page_css=Markup(text("page.css")), page_js=Markup(script), policy=_policy(script)
    )
    return found


def _policy(script: str) -> str:
    """What a page may load: nothing, and run our own script only, known by its hash."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        f"form-action 'none'; script-src 'sha256-{digest}'"
    )
