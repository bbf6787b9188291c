"""The shipped example: well-formed, and judged by hand."""

import json
import re
from importlib import resources
from typing import Final

import pytest

from eti_rank.service.schemas import RerankIn

JUDGEMENTS: Final = {
    "Bread prices rose": 0,
    "Dough left in a warm kitchen": 0,
    "Before dawn the bakers": 0,
    "Kneading lines up": 1,
    "A baked loaf goes stale": 0,
    "Baking powder gives off": 0,
    "Yeast extract is sold": 0,
    "Yeast cells feed": 2,
    "Flat breads such as": 0,
    "The crust turns brown": 0,
    "In a sourdough starter": 2,
    "Hot-air balloons rise": 0,
}
"""By the opening of a document: 2 says what makes the dough rise, 1 says a part of it, 0 does not say it.

Kneading is a part, because the net keeps the gas that something else has made. How long dough takes, what
lifts a muffin and what yeast extract tastes of are near misses: the right words, and no answer.
"""
STEMS: Final = ("bread", "dough", "ris", "rose", "bake", "baking", "yeast")
"""Beginnings of words that the question asks for, and that a document without the answer may hold."""


@pytest.fixture(scope="module")
def example() -> RerankIn:
    shipped = resources.files("eti_rank.cli").joinpath("example.json").read_bytes()
    return RerankIn.model_validate(json.loads(shipped))


def grades(example: RerankIn) -> list[int]:
    """In the order of the documents."""
    found = [
        [grade for opening, grade in JUDGEMENTS.items() if document.text.startswith(opening)]
        for document in example.documents
    ]
    assert [len(one) for one in found] == [1] * len(example.documents), "each document is judged once"
    return [grade for (grade,) in found]


def test_every_document_is_judged_and_every_judgement_is_used(example) -> None:
    assert len(grades(example)) == len(JUDGEMENTS)


def test_no_document_and_no_id_comes_twice(example) -> None:
    texts = [document.text for document in example.documents]
    ids = [document.id for document in example.documents if document.id is not None]
    assert len(set(texts)) == len(texts)
    assert len(set(ids)) == len(ids)


def test_the_question_is_decided_by_few_documents(example) -> None:
    judged = grades(example)
    assert 2 <= judged.count(2) < judged.count(0)


def test_the_order_given_is_not_the_answer(example) -> None:
    judged = grades(example)
    assert 2 not in judged[: judged.count(2) + judged.count(1)]


def test_most_documents_without_the_answer_share_words_with_it(example) -> None:
    near = [
        document.text
        for document, grade in zip(example.documents, grades(example), strict=True)
        if grade == 0 and any(re.search(rf"\b{stem}", document.text, re.IGNORECASE) for stem in STEMS)
    ]
    assert 2 * len(near) > list(JUDGEMENTS.values()).count(0)
