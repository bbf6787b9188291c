"""`eti-rank rerank`, with an engine of its own and against a running service."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from eti_rank.service.schemas import RerankOut
from tests.service.server_process import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server(0.0, 0.0)
    server.wait_until_it_answers("/readyz")
    yield server
    server.process.kill()
    server.process.wait()


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    path = tmp_path / "documents.jsonl"
    path.write_text('"first score=1"\n\n{"text": "second score=3", "id": "B"}\n"third score=2"\n')
    return path


def test_a_service_answers(run, server, documents) -> None:
    ran = run("rerank", "--query", "q", "--documents", str(documents), "--json", "--url", server.url)
    assert (ran.code, ran.err) == (0, "")
    answer = RerankOut.model_validate_json(ran.out)
    assert [row.index for row in answer.results] == [1, 2, 0]
    assert answer.results[0].id == "B"


def test_the_url_may_come_from_the_environment(run, server, documents, monkeypatch) -> None:
    monkeypatch.setenv("ETI_RANK_URL", server.url + "/")
    ran = run("rerank", "--query", "q", "--documents", str(documents), "--json", "--top-n", "1")
    assert len(json.loads(ran.out)["results"]) == 1


def test_an_own_engine_answers_in_the_same_form(run, own_engine, server, documents) -> None:
    arguments = ("rerank", "--query", "q", "--documents", str(documents), "--json")
    own, served = run(*arguments), run(*arguments, "--url", server.url)
    assert own.code == served.code == 0

    def shape(value: object) -> object:
        if isinstance(value, dict):
            return {key: shape(inner) for key, inner in value.items()}
        return type(value).__name__

    own_body, served_body = json.loads(own.out), json.loads(served.out)
    assert shape(own_body) == shape(served_body)
    assert own_body["usage"]["full_tokens"] == served_body["usage"]["full_tokens"]


def test_the_table_is_for_people(run, server, documents) -> None:
    ran = run("rerank", "--query", "what is it", "--documents", str(documents), "--url", server.url)
    lines = ran.out.splitlines()
    assert lines[0].strip() == "what is it"
    rows = [line.split() for line in lines if line.strip()[:1].isdigit()]
    assert rows[0][:4] == ["1", "0.9526", "B", "second"]
    assert [row[0] for row in rows[:3]] == ["1", "2", "3"]
    assert "3 documents; " in ran.out and "double, label scores, not calibrated" in ran.out


def test_neither_markup_nor_escapes_of_a_document_reach_the_terminal(run, server, tmp_path) -> None:
    path = tmp_path / "hostile.jsonl"
    texts = [
        "[bold red]loud[/] :smile: [link=x]y[/link] score=1",
        "\x1b[31mred\x9b31m \u202ereversed\r\n",
        "[/]",
    ]
    path.write_text("\n".join(json.dumps({"text": t, "id": "[i]\x1b]0;t\x07"}) for t in texts))
    ran = run("rerank", "--query", "[blink]q\x1b[0m", "--documents", str(path), "--url", server.url)
    assert ran.code == 0
    assert "[bold red]loud[/] :smile:" in ran.out and "[i]" in ran.out and "[blink]q" in ran.out
    assert not {"\x1b", "\x9b", "\u202e", "\x07", "\r"} & set(ran.out)


def test_malformed_lines_are_named_and_the_others_ranked(run, server, tmp_path) -> None:
    path = tmp_path / "mixed.jsonl"
    lines = [
        b'"good score=1"',
        b"{",
        b"3",
        b'{"text": 3}',
        b'{"txt": "a"}',
        b"\xff\xfe",
        b"[" * 99999,
        b'"also"',
    ]
    path.write_bytes(b"\n".join(lines))
    ran = run("rerank", "--query", "q", "--documents", str(path), "--json", "--url", server.url)
    assert ran.code == 1
    assert len(json.loads(ran.out)["results"]) == 2
    faults = ran.err.splitlines()
    assert [fault.split(":")[2] for fault in faults] == ["2", "3", "4", "5", "6", "7"]
    assert all(fault.startswith(f"eti-rank: {path}:") for fault in faults)
    assert "text: Input should be a valid string" in faults[2]
    assert "not UTF-8 at byte 1" in faults[4]
    assert "nested too deeply" in faults[5]


def test_a_document_that_fails_is_exit_code_1_even_if_it_is_not_shown(run, server, tmp_path) -> None:
    path = tmp_path / "failing.jsonl"
    path.write_text('"good score=1"\n"bad \\ud800"\n')
    for arguments in ((), ("--top-n", "1"), ("--json",)):
        ran = run("rerank", "--query", "q", "--documents", str(path), "--url", server.url, *arguments)
        assert ran.code == 1
    shown = run("rerank", "--query", "q", "--documents", str(path), "--url", server.url)
    assert "1: `text` holds a lone surrogate at position 4" in shown.out
    assert "2 documents, 1 of them failed" in shown.out


def test_plain_lines_and_standard_input(run, server, tmp_path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b'\xef\xbb\xbf"quoted"\r\n\r\nsecond line\n')
    ran = run("rerank", "--query", "q", "--documents", str(path), "--url", server.url)
    assert ran.code == 0
    assert '"quoted" ' in ran.out and "second line" in ran.out
    ran = run("rerank", "--query", "q", "--documents", "-", "--url", server.url, "--json", stdin=b'"a"\n"b"')
    assert len(json.loads(ran.out)["results"]) == 2
    ran = run("rerank", "--query", "q", "--documents", "-", "--url", server.url, stdin=b'"a"\n}')
    assert (ran.code, ran.err.split(" ", 1)[1][:8]) == (1, "stdin:2:")


def test_the_example_is_ranked(run, own_engine) -> None:
    ran = run("rerank", "--example", "--json")
    assert ran.code == 0
    assert len(json.loads(ran.out)["results"]) == 12


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--query", "q"), "--documents"),
        (("--example", "--query", "q"), "--example alone"),
        (("--query", "q", "--documents", "absent.jsonl"), "absent.jsonl: No such file"),
        (("--query", "q", "--documents", "."), "Is a directory"),
        (("--query", " ", "--documents", "-"), "query: the query is empty"),
        (("--query", "q", "--documents", "-", "--top-n", "0"), "--top-n"),
        (("--query", "q", "--documents", "-", "--config", "absent.toml"), "absent.toml does not exist"),
        (("--unknown",), "--unknown"),
    ],
)
def test_wrong_usage_is_exit_code_2(run, own_engine, arguments, says) -> None:
    ran = run("rerank", *arguments, stdin=b'"a"')
    assert ran.code == 2
    assert says in " ".join(ran.err.split())


@pytest.mark.parametrize("content", [b"", b"\n \n"], ids=["empty", "blank"])
def test_no_documents_is_exit_code_2(run, content) -> None:
    ran = run("rerank", "--query", "q", "--documents", "-", stdin=content)
    assert (ran.code, ran.err) == (2, "eti-rank: --documents: - holds no documents\n")


def test_only_malformed_lines_is_exit_code_2(run) -> None:
    ran = run("rerank", "--query", "q", "--documents", "-", stdin=b"{\n}")
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 3


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense", "http://[bad"])
def test_an_unreachable_service_is_exit_code_3(run, documents, url) -> None:
    ran = run("rerank", "--query", "q", "--documents", str(documents), "--url", url)
    assert ran.code == 3
    assert "no answer from" in ran.err


def test_a_service_that_refuses_is_exit_code_2_and_its_reason_is_shown(run, server, documents) -> None:
    ran = run("rerank", "--query", "w " * 101, "--documents", str(documents), "--url", server.url)
    assert (ran.code, ran.err) == (2, "eti-rank: query: the query has more than 100 tokens\n")


def test_a_service_that_is_not_ready_is_exit_code_3(run, documents) -> None:
    server = Server(0.0, 600.0)
    try:
        server.wait_until_it_answers("/healthz")
        ran = run("rerank", "--query", "q", "--documents", str(documents), "--url", server.url)
    finally:
        server.process.kill()
        server.process.wait()
    assert ran.code == 3
    assert "503: the engine is starting" in ran.err


class SomethingElse(http.server.BaseHTTPRequestHandler):
    """Answers every POST with a greeting."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_args: object) -> None:
        pass


def test_something_else_behind_the_url_is_exit_code_3(run, documents) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), SomethingElse) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{other.server_port}"
        ran = run("rerank", "--query", "q", "--documents", str(documents), "--url", url)
        other.shutdown()
    assert ran.code == 3
    assert "answered 200 in an unknown form; is it eti-rank?" in ran.err


def test_wrong_settings_are_exit_code_2(run, documents, monkeypatch) -> None:
    monkeypatch.setenv("ETI_RANK_ENGINE__DEVISE", "cpu")
    ran = run("rerank", "--query", "q", "--documents", str(documents))
    assert ran.code == 2
    assert "ETI_RANK_ENGINE__DEVISE is not a setting" in ran.err
