"""Whoever is not this machine's own page gets nothing: each rule is tried by itself."""

from __future__ import annotations

import json
import socket

import httpx
import pytest

from attnflow._errors import InputError
from attnflow.app._guard import MOST_BYTES, TOKEN, checked_address, hosts_of, literal
from attnflow.cli import main
from conftest import EVIL, FORMULA


@pytest.fixture
def guest(server):
    """Knows the address and nothing else."""
    with httpx.Client(base_url=server.address) as client:
        yield client


@pytest.fixture
def owner(server):
    """Has opened the launch link."""
    with httpx.Client(base_url=server.address) as client:
        assert client.get("/launch", params={"token": server.access.launch}).status_code == 200
        yield client


def change(server, client, path="/api/predict", **headers):
    """A request that changes something, as our own page makes it; `None` leaves a header out."""
    usual = {"origin": server.address, TOKEN: server.access.token}
    usual |= {"content-type": "application/json"}
    given = {k.replace("_", "-"): v for k, v in headers.items()}
    sent = {k: v for k, v in {**usual, **given}.items() if v is not None}
    body = json.dumps({"study": "two-mixture", "config": {}})
    return client.post(path, content=body, headers=sent)


PATHS = ("/", "/api/runs", "/api/run?id=flow-0", "/static/main.js", "/plotly.js", "/nothing")


@pytest.mark.parametrize("path", PATHS)
def test_without_the_link_there_is_nothing(guest, path):
    answer = guest.get(path)
    assert answer.status_code == 401
    assert "flow-0" not in answer.text


def test_the_link_is_exchanged_for_a_strict_cookie(server, guest):
    answer = guest.get("/launch", params={"token": server.access.launch})
    (cookie,) = answer.headers.get_list("set-cookie")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert server.access.launch not in cookie
    assert f"attnflow-{server.port}=" in cookie
    assert guest.get("/api/runs").status_code == 200


@pytest.mark.parametrize("token", ["", "x", "é", "a" * 10_000])
def test_a_wrong_token_opens_nothing(guest, token):
    assert guest.get("/launch", params={"token": token}).status_code == 401
    assert guest.get("/api/runs").status_code == 401


def test_a_link_for_one_visit_is_good_once(server, guest):
    token = server.access.one_visit()
    assert guest.get("/launch", params={"token": token}).status_code == 200
    assert guest.get("/launch", params={"token": token}).status_code == 401


def test_two_tokens_or_two_cookies_are_none(server, guest):
    twice = f"/launch?token={server.access.launch}&token={server.access.launch}"
    assert guest.get(twice).status_code == 401
    name, session = server.access.cookie, server.access.session
    answer = guest.get("/api/runs", headers={"cookie": f"{name}=x; {name}={session}"})
    assert answer.status_code == 401


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:{port}",
            "127.0.0.1",
            "127.0.0.1:1",
            "[::1]",
            "[::2]:{port}",
        ),
        *("127.0.0.1.evil.example", "localhost.evil:{port}", "0.0.0.0:{port}", "127.1:{port}", ""),
    ],
)
def test_another_host_is_turned_down(server, owner, host):
    """DNS rebinding: a name of the attacker's that leads to this address."""
    answer = owner.get("/api/runs", headers={"host": host.format(port=server.port)})
    assert answer.status_code in (400, 403)
    assert "flow-0" not in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}"])
def test_the_names_of_the_loopback_address_are_answered(server, owner, host):
    sent = {"host": host.format(port=server.port), "cookie": _cookie(server)}
    assert httpx.get(f"{server.address}/api/runs", headers=sent).status_code == 200


def test_ipv6_literals():
    assert "[::1]:80" in hosts_of("::1", 80)
    assert "[::1]" in hosts_of("::1", 80)
    assert "[::1]" not in hosts_of("::1", 8642)
    assert "::1:8642" not in hosts_of("127.0.0.1", 8642)
    assert literal("::1") == "[::1]"
    assert hosts_of("192.168.7.7", 9) == {"192.168.7.7:9"}


def test_two_hosts_are_none(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw:
        host = f"Host: 127.0.0.1:{server.port}\r\n"
        lines = f"GET /api/runs HTTP/1.1\r\n{host}{host}Cookie: {_cookie(server)}\r\n"
        raw.sendall((lines + "Connection: close\r\n\r\n").encode())
        answer = raw.makefile("rb").read()
    assert answer.split(b" ")[1] in (b"400", b"403")
    assert b"flow-0" not in answer


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", ""])
def test_another_origin_reads_and_changes_nothing(server, owner, origin):
    given = origin.format(port=server.port)
    assert owner.get("/api/runs", headers={"origin": given}).status_code == 403
    assert change(server, owner, origin=given).status_code == 403


def test_another_port_of_this_machine_is_another_origin(server, owner):
    assert change(server, owner, origin="http://127.0.0.1:1").status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_request_that_another_page_began_is_turned_down(owner, site):
    assert owner.get("/api/runs", headers={"sec-fetch-site": site}).status_code == 403
    assert owner.get("/", headers={"sec-fetch-site": site}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": None}, 403),
        ({TOKEN: None}, 403),
        ({TOKEN: "x"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": None}, 415),
        ({"content-type": "application/json; charset=utf-8"}, 200),
    ],
)
def test_a_change_needs_origin_token_and_json(server, owner, headers, status):
    assert change(server, owner, **headers).status_code == status


def test_the_token_of_the_page_is_no_key_without_the_cookie(server, guest):
    assert change(server, guest).status_code == 401


def test_a_large_or_endless_body_is_not_read(server, owner):
    headers = {"origin": server.address, TOKEN: server.access.token}
    headers["content-type"] = "application/json"
    big = owner.post("/api/predict", content=b"x" * (MOST_BYTES + 1), headers=headers)
    assert big.status_code == 413
    endless = owner.post("/api/predict", content=iter([b"{}"]), headers=headers)
    assert endless.status_code == 411


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_turned_down(owner, method):
    assert owner.request(method, "/api/runs").status_code == 405


@pytest.mark.parametrize("path", ["/api/start", "/api/cancel", "/api/resume", "/api/predict"])
def test_what_changes_something_is_not_a_link(owner, path):
    assert owner.get(path).status_code == 405


def test_every_answer_has_a_strict_policy(owner, guest):
    for answer in (owner.get("/"), owner.get("/api/runs"), owner.get("/nothing"), guest.get("/")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe-eval" not in policy
        assert "frame-ancestors 'none'" in policy
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    "id",
    ["../flow-0", "/etc", "flow-0/..", "map/../flow-0", "map/..", ".", "", "flow-0\0", "%2e%2e"],
)
def test_files_only_by_the_id_of_a_run(owner, id):
    for path in ("/api/run", "/api/report", "/api/spark", "/api/download", "/api/sweep"):
        assert owner.get(path, params={"id": id}).status_code == 404, path


@pytest.mark.parametrize("name", ["../manifest", "..%2fmanifest", "/etc/passwd", "loss.svg", ""])
def test_figures_and_static_files_only_by_their_names(owner, folder, name):
    ids = [p.name for p in folder.iterdir() if p.name.startswith("x'")]
    assert owner.get("/api/figure", params={"id": ids[0], "name": name}).status_code == 404
    assert owner.get(f"/static/{name}").status_code in (404, 307)
    assert owner.get("/static/..%2f_guard.py").status_code == 404


def test_a_stored_page_or_figure_stands_in_an_origin_of_its_own(owner, folder):
    (id,) = [p.name for p in folder.iterdir() if p.name.startswith("x'")]
    for path, more in (("/api/report", {}), ("/api/figure", {"name": "loss"})):
        answer = owner.get(path, params={"id": id, **more})
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("sandbox allow-scripts;")
        assert "allow-same-origin" not in policy
        assert "connect-src" not in policy
        assert "default-src 'none'" in policy


def test_words_stay_words_in_json_and_in_a_spreadsheet(owner, folder):
    (id,) = [p.name for p in folder.iterdir() if p.name.startswith("x'")]
    told = owner.get("/api/run", params={"id": id})
    assert told.headers["content-type"] == "application/json"
    assert told.json()["labels"]["token"] == [EVIL, told.json()["labels"]["token"][1], FORMULA]
    table = owner.get("/api/runs.csv").text
    assert not any(line.startswith(("=", "+", "@")) for line in table.splitlines())
    header = owner.get("/api/download", params={"id": id, "names": "weight"}).text.splitlines()[0]
    assert FORMULA in header
    assert '"weight[' in header or ",weight[" in header


@pytest.mark.parametrize(
    ("study", "config", "said"),
    [
        ("focus-dilution", {"pi": [0.7, 0.7]}, "pi"),
        ("focus-dilution", {"no_such_key": 1}, "no_such_key"),
        ("focus-dilution", {"dim": {"$ref": 1}}, "dim"),
        ("focus-dilution-text", {"text": "/etc/passwd"}, "study"),
        ("/tmp/evil.py", {}, "study"),
        ("../x.py", {}, "study"),
        ("fake", {}, "study"),
    ],
)
def test_only_typed_configs_of_known_studies(server, owner, study, config, said):
    headers = {"origin": server.address, TOKEN: server.access.token}
    for path in ("/api/predict", "/api/start"):
        answer = owner.post(path, json={"study": study, "config": config}, headers=headers)
        assert answer.status_code == 400, path
        assert answer.json()["field"] == said
    assert server.jobs.told() == []


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"study": 1, "config": {}}', b"[" * 20_000])
def test_a_body_that_is_no_question_is_one_sentence(server, owner, body):
    headers = {"origin": server.address, TOKEN: server.access.token}
    headers["content-type"] = "application/json"
    answer = owner.post("/api/predict", content=body, headers=headers)
    assert answer.status_code == 400
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "10.0.0.1", "example.org", ""])
def test_another_address_is_refused_unless_it_is_said(host):
    with pytest.raises(InputError, match="host"):
        checked_address(host, network=False)


def test_another_address_can_be_asked_for():
    assert checked_address("192.168.1.5", network=True) == "192.168.1.5"
    assert checked_address("[::1]", network=False) == "::1"
    assert checked_address("localhost", network=False) == "127.0.0.1"
    with pytest.raises(InputError, match="every address"):
        checked_address("0.0.0.0", network=True)


def test_the_command_refuses_another_address_in_one_sentence(tmp_path, capsys):
    assert main(["explore", str(tmp_path), "--host", "192.168.1.5"]) == 2
    said = capsys.readouterr()
    assert "--open-to-network" in said.err
    assert said.out == ""


def test_another_address_is_warned_of(tmp_path, capsys, monkeypatch):
    """Served on the loopback address here: what is tried is what the command says."""
    from attnflow import app

    class Listening:
        address, url = "http://192.168.1.5:9", "http://192.168.1.5:9/launch?token=t"

    def serve(folder, *, ready, **options):
        assert options["network"] is True
        ready(Listening())

    monkeypatch.setattr(app, "serve", serve)
    words = ["explore", str(tmp_path), "--host", "192.168.1.5", "--open-to-network", "--no-browser"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert "warning" in said.err
    assert "other machines" in said.err
    assert Listening.url in said.out


def _cookie(server) -> str:
    return f"{server.access.cookie}={server.access.session}"
