from pathlib import Path

import pytest
from ir_measures import ScoredDoc

from eval import beir


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "small"
    (made / "qrels").mkdir(parents=True)
    (made / "corpus.jsonl").write_text(
        '{"_id": "a", "title": "T", "text": "alpha"}\n{"_id": "b", "title": "", "text": "beta"}\n'
    )
    (made / "queries.jsonl").write_text('{"_id": "1", "text": "what?"}\n')
    (made / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\ta\t2\n")
    (made / "bm25.run").write_text("1 Q0 a 2 1.5 bm25\n1 Q0 b 1 3.5 bm25\n")
    return made


def test_loads_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETI_RANK_DATA", str(folder.parent))
    small = beir.collection("small")
    assert small.name == "small"
    assert small.queries == {"1": "what?"}
    assert [(qrel.doc_id, qrel.relevance) for qrel in small.qrels] == [("a", 2)]
    best, second = small.candidates("1", 5)
    assert (best.index, best.id, best.first_stage_score, best.title) == (0, "b", 3.5, None)
    assert (second.index, second.id, second.full_text) == (1, "a", "T alpha")
    assert small.candidates("1", 1) == (best,)
    assert small.candidates("unknown", 5) == ()


def test_absent_collection_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETI_RANK_DATA", str(tmp_path))
    with pytest.raises(beir.CollectionError, match="ETI_RANK_DATA"):
        beir.collection("small")


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("corpus.jsonl", '{"_id": "a", "text": "x"}\n{"_id": "b"}\n', r"corpus\.jsonl:2: no text"),
        ("queries.jsonl", "{\n", r"queries\.jsonl:1"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\n1\ta\tgood\n", r"test\.tsv:2"),
        ("bm25.run", "1 Q0 a 1 2.0 x\n1 Q0 b 2\n", r"bm25\.run:2"),
        ("bm25.run", "1 Q0 a 1 high x\n", r"bm25\.run:1"),
    ],
)
def test_malformed_line_is_named(folder: Path, file: str, content: str, complaint: str) -> None:
    (folder / file).write_text(content)
    with pytest.raises(beir.CollectionError, match=complaint):
        beir.load(folder)


def test_missing_file_is_named(folder: Path) -> None:
    (folder / "corpus.jsonl").unlink()
    with pytest.raises(beir.CollectionError, match=r"corpus\.jsonl: No such file"):
        beir.load(folder)


def test_run_round_trips(tmp_path: Path) -> None:
    rows = [ScoredDoc("1", "a", 2.0), ScoredDoc("1", "b", 1.0), ScoredDoc("2", "a", 0.5)]
    beir.write_run(tmp_path / "x.run", rows, "x")
    assert list(beir.read_run(tmp_path / "x.run")) == rows
    assert [line.split()[3] for line in (tmp_path / "x.run").read_text().splitlines()] == ["1", "2", "1"]


def test_bm25_on_the_shared_collections_gives_the_known_figures() -> None:
    from eval import measures

    known = {"noveleval": (20, 0.610), "cranfield": (100, 0.316), "vaswani": (100, 0.382)}
    try:
        loaded = {name: beir.collection(name) for name in known}
    except beir.CollectionError as absent:
        pytest.skip(str(absent))
    for name, (depth, ndcg) in known.items():
        run = [row for rows in loaded[name].run.values() for row in rows[:depth]]
        values = measures.per_query(measures.NDCG, loaded[name].qrels, run)
        assert measures.mean(values) == pytest.approx(ndcg, abs=5e-4)
