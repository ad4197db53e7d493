"""The page and what it asks for: reading is GET, what starts or stops a solve is POST."""

from __future__ import annotations

import functools
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from attnflow._errors import InputError, nearest
from attnflow.app import _downloads, _ledger, _shown, _stores, _sweeps, _whatif
from attnflow.app._guard import PAGE_POLICY, Access
from attnflow.app._jobs import Jobs
from attnflow.app._library import Library, Missing
from attnflow.runs import plain

_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}


def routes(library: Library, jobs: Jobs, access: Access) -> FastAPI:
    """The page and what it asks for."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    def as_json(value: Any, status: int = 200) -> Response:
        text = json.dumps(plain(value), allow_nan=False)
        return Response(text, status, media_type="application/json")

    def as_numbers(values: Any, **told: Any) -> Response:
        headers = {"x-shape": json.dumps(list(values.shape)), "x-told": json.dumps(plain(told))}
        return Response(values.tobytes(), media_type="application/octet-stream", headers=headers)

    def stored(content: bytes, kind: str) -> Response:
        return Response(content, media_type=kind, headers={"content-security-policy": PAGE_POLICY})

    @app.exception_handler(Missing)
    def missing(_: Request, error: Missing) -> Response:
        return as_json({"error": str(error)}, 404)

    @app.exception_handler(InputError)
    def bad(_: Request, error: InputError) -> Response:
        return as_json({"error": str(error), "field": error.field}, 400)

    @app.exception_handler(Exception)
    def broken(_: Request, error: Exception) -> Response:
        return as_json({"error": f"{type(error).__name__} in the server"}, 500)

    @app.get("/")
    def index() -> Response:
        text = _static("index.html").decode().replace("{{token}}", access.token)
        return Response(text.replace("{{styles}}", _own_styles()), media_type="text/html")

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        headers = {"cache-control": "no-cache"}
        return Response(_static(name), media_type=_KINDS[Path(name).suffix], headers=headers)

    @app.get("/plotly.js")
    def plotly() -> Response:
        headers = {"cache-control": "private, max-age=86400"}
        return Response(_plotly(), media_type="text/javascript", headers=headers)

    @app.get("/api/runs")
    def runs() -> Response:
        folder = library.folder
        return as_json({"folder": str(folder), "runs": _shown.runs(library), "jobs": jobs.told()})

    @app.get("/api/runs.csv")
    def runs_csv() -> Response:
        content = _downloads.csv(*_shown.table(library))
        return _attached(content, "text/csv", "runs.csv")

    @app.get("/api/spark")
    def spark(id: str) -> Response:
        return as_json(_shown.spark(library.run(id)))

    @app.get("/api/run")
    def run(id: str) -> Response:
        return as_json(_shown.described(id, library.run(id)) | {"job": jobs.of(id)})

    @app.get("/api/column")
    def column(id: str, name: str, take: str = "") -> Response:
        chosen = [int(k) for k in take.split(",") if k.isdecimal()] if take else None
        return as_numbers(_shown.column(library.run(id), name, chosen))

    @app.get("/api/frame")
    def frame(id: str, name: str, row: int) -> Response:
        return as_numbers(_shown.frame(library.run(id), name, row))

    @app.get("/api/projection")
    def projection(id: str, name: str) -> Response:
        points, shares = _shown.projection(library.run(id), name)
        return as_numbers(points, shares=shares)

    @app.get("/api/download")
    def download(id: str, names: str = "", format: str = "csv") -> Response:
        content, kind, name = _downloads.of_run(library.run(id), _listed(names), format)
        return _attached(content, kind, name)

    @app.get("/api/figure")
    def figure(id: str, name: str) -> Response:
        run = library.run(id)
        if name not in _shown.figures(run):
            raise Missing("This run has no such figure.")
        assert run.path is not None
        return stored((run.path / "figures" / f"{name}.svg").read_bytes(), "image/svg+xml")

    @app.get("/api/report")
    def report(id: str) -> Response:
        run = library.run(id)
        if run.path is None or "report.html" not in run.manifest["files"]:
            raise Missing("This run has no page yet; attnflow report RUN draws it.")
        return stored((run.path / "report.html").read_bytes(), "text/html")

    @app.get("/api/ledger")
    def ledger(id: str) -> Response:
        return as_json(_ledger.shown(library.run(id)))

    @app.get("/api/ledger/download")
    def ledger_download(id: str) -> Response:
        run = library.run(id)
        content = _downloads.csv(*_ledger.table(run))
        return _attached(content, "text/csv", f"{run.study}-claims.csv")

    @app.get("/api/sweep")
    def sweep(id: str) -> Response:
        entry = library.find(id)
        return as_json(_sweeps.shown(id, entry.path, library.ensemble(id)))

    @app.get("/api/sweep/column")
    def sweep_column(id: str, name: str) -> Response:
        return as_numbers(_sweeps.numbers(library.ensemble(id), name))

    @app.get("/api/sweep/download")
    def sweep_download(id: str, format: str = "csv") -> Response:
        found = _downloads.of_sweep(library.find(id).path, library.ensemble(id), format)
        return _attached(*found)

    @app.get("/api/stores")
    def stores() -> Response:
        return as_json(_stores.listed(library))

    @app.get("/api/corpus")
    def corpus(id: str) -> Response:
        return as_json(_stores.corpus(library, id))

    @app.get("/api/associations")
    def associations(id: str, token: int) -> Response:
        return as_json(_stores.associations(library, id, token))

    @app.get("/api/associations.csv")
    def associations_csv(id: str, token: int) -> Response:
        names = _stores.corpus(library, id)["tokens"]
        found = _stores.associations(library, id, token)
        rows = [[n, names[token], names[k], x, y] for n, some in found.items() for k, x, y in some]
        head = ["basis", "token", "associated", "entry", "chance"]
        return _attached(_downloads.csv(head, rows), "text/csv", "associations.csv")

    @app.get("/api/studies")
    def studies() -> Response:
        return as_json(_whatif.studies())

    @app.post("/api/predict")
    async def predict(request: Request) -> Response:
        given = await _object(request)
        return as_json(await run_in_threadpool(_whatif.predicted, *_asked(given)))

    @app.post("/api/start")
    async def start(request: Request) -> Response:
        given = await _object(request)
        return as_json(jobs.start(*_whatif.checked(*_asked(given))))

    @app.post("/api/cancel")
    async def cancel(request: Request) -> Response:
        given = await _object(request)
        return as_json(jobs.cancel(str(given.get("id", ""))))

    @app.post("/api/resume")
    async def resume(request: Request) -> Response:
        given = await _object(request)
        return as_json(jobs.resume(str(given.get("id", ""))))

    return app


async def _object(request: Any) -> dict[str, Any]:
    try:
        found = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise InputError("request", "the body is not JSON") from None
    if not isinstance(found, dict):
        raise InputError("request", "the body is not a JSON object")
    return found


def _asked(given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    study, config = given.get("study"), given.get("config")
    if not isinstance(study, str) or not isinstance(config, dict):
        raise InputError("request", "has a study (a name) and a config (an object)")
    return study, config


def _listed(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _attached(content: bytes, kind: str, name: str) -> Response:
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)
    headers = {"content-disposition": f'attachment; filename="{safe}"'}
    return Response(content, media_type=kind, headers=headers)


def _static(name: str) -> bytes:
    folder = resources.files("attnflow.app").joinpath("static")
    known = {each.name: each for each in folder.iterdir()}
    if name not in known or Path(name).suffix not in _KINDS:
        raise Missing(f"There is no such file; {nearest(name, known)}")
    return known[name].read_bytes()


@functools.cache
def _own_styles() -> str:
    """Empty elements in the place of styles that plotly.js would write into the page for its maps.

    It does not write what is there, and our policy would refuse it with a complaint.
    """
    ids = set(re.findall(rb'getElementById\("([0-9a-f]{64})"\)', _plotly()))
    return "".join(f'<template id="{each.decode()}"></template>' for each in sorted(ids))


@functools.cache
def _plotly() -> bytes:
    return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
