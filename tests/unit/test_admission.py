import pytest

from eti_rank.ranking.admission import admit
from eti_rank.types import Document, Status


def documents(*texts: str, scores: tuple[float | None, ...] = ()) -> list[Document]:
    scores = scores or (None,) * len(texts)
    return [
        Document(index=i, text=text, first_stage_score=score)
        for i, (text, score) in enumerate(zip(texts, scores, strict=True))
    ]


def test_every_index_is_in_one_place() -> None:
    admission = admit(documents("a", "", "b", "\ud800", "a", "x" * 50), max_document_bytes=10)
    assert [d.index for d in admission.readable] == [0, 2]
    assert {i: o.status for i, o in admission.outcomes.items()} == {
        1: Status.EMPTY,
        3: Status.FAILED,
        5: Status.FAILED,
    }
    assert admission.originals == {4: 0}


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\u2003"], ids=["none", "space", "lines", "em-space"])
def test_white_space_is_empty(text: str) -> None:
    assert admit(documents(text), 10).outcomes[0].status is Status.EMPTY


def test_a_title_alone_is_read() -> None:
    assert admit([Document(index=0, text="", title="Moby-Dick")], 100).readable


def test_nul_bytes_are_text() -> None:
    assert [d.text for d in admit(documents("\0"), 10).readable] == ["\0"]


@pytest.mark.parametrize("field", ["text", "title", "id"])
def test_a_lone_surrogate_fails_the_document_and_names_the_field(field: str) -> None:
    document = Document(**({"index": 0, "text": "fine"} | {field: "ab\udfffc"}))
    outcome = admit([document], 100).outcomes[0]
    assert outcome.status is Status.FAILED
    assert outcome.failure is not None
    assert f"`{field}` holds a lone surrogate at position 2" in outcome.failure


def test_the_limit_counts_bytes_and_is_inclusive() -> None:
    admission = admit(documents("éé", "ééé"), max_document_bytes=4)
    assert [d.index for d in admission.readable] == [0]
    assert admission.outcomes[1].failure == "the document has 6 bytes of UTF-8; the limit is 4"


def test_a_title_tells_duplicates_apart() -> None:
    pair = [Document(index=0, text="t", title="a"), Document(index=1, text="t", title="b")]
    assert not admit(pair, 100).originals


def test_the_best_of_the_first_stage_are_read_first() -> None:
    admission = admit(documents("a", "b", "c", "d", scores=(0.1, None, 0.9, 0.1)), 100)
    assert [d.index for d in admission.readable] == [2, 0, 3, 1]
