"""Test collections: a BEIR folder with a TREC run beside it.

Collections are read from ``ETI_RANK_DATA``, else from ``shared/data`` beside the repository; they are
never copied into it.
"""

import csv
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ir_measures import Qrel, ScoredDoc

from eti_rank.types import Document

DEFAULT_FOLDER = Path(__file__).parents[2] / "shared" / "data"


class CollectionError(Exception):
    """A collection is absent or malformed; the text says where."""


@dataclass(frozen=True, slots=True)
class Collection:
    """Documents, queries, judgements and a first-stage run."""

    name: str
    documents: dict[str, Document]
    """By document id; `index` is the place in the corpus."""
    queries: dict[str, str]
    qrels: tuple[Qrel, ...]
    run: dict[str, tuple[ScoredDoc, ...]]
    """By query id, best first."""

    def candidates(self, query_id: str, depth: int) -> tuple[Document, ...]:
        """The first `depth` documents of the run, with their first-stage scores, indexed from 0."""
        top = self.run.get(query_id, ())[:depth]
        return tuple(
            Document(
                index=index,
                id=scored.doc_id,
                text=self.documents[scored.doc_id].text,
                title=self.documents[scored.doc_id].title,
                first_stage_score=scored.score,
            )
            for index, scored in enumerate(top)
        )


def collection(name: str) -> Collection:
    """Load a collection by name.

    Raises:
        CollectionError: it is not there, or a line of it is malformed.
    """
    parent = Path(os.environ.get("ETI_RANK_DATA") or DEFAULT_FOLDER)
    folder = parent / name
    if not folder.is_dir():
        raise CollectionError(
            f"collection {name} is not in {parent}; set ETI_RANK_DATA to a folder of BEIR collections"
        )
    return load(folder)


def load(folder: Path) -> Collection:
    """Read ``corpus.jsonl``, ``queries.jsonl``, ``qrels/*.tsv`` and ``*.run``.

    Raises:
        CollectionError: a file is missing, or a line is malformed; names file and line.
    """
    documents = {
        line["_id"]: Document(index=index, id=line["_id"], text=line["text"], title=line.get("title") or None)
        for index, line in enumerate(_json_lines(folder / "corpus.jsonl", ("_id", "text")))
    }
    queries = {line["_id"]: line["text"] for line in _json_lines(folder / "queries.jsonl", ("_id", "text"))}
    qrels = tuple(qrel for path in sorted((folder / "qrels").glob("*.tsv")) for qrel in _qrels(path))
    run: dict[str, list[ScoredDoc]] = {}
    for path in sorted(folder.glob("*.run")):
        for scored in read_run(path):
            run.setdefault(scored.query_id, []).append(scored)
    ranked = {query: tuple(sorted(rows, key=lambda row: -row.score)) for query, rows in run.items()}
    return Collection(folder.name, documents, queries, qrels, ranked)


def read_run(path: Path) -> Iterator[ScoredDoc]:
    """Rows of a TREC run.

    Raises:
        CollectionError: a line has not six fields, or its score is no number.
    """
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                query_id, _, doc_id, _, score, _ = line.split()
                yield ScoredDoc(query_id, doc_id, float(score))
            except ValueError:
                raise CollectionError(
                    f"{path}:{number}: want `query Q0 document rank score name`, got {line.strip()!r}"
                ) from None


def write_run(path: Path, rows: Iterator[ScoredDoc] | list[ScoredDoc], name: str) -> None:
    """Write a TREC run; rows of a query stand together, best first."""
    rank: dict[str, int] = {}
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            rank[row.query_id] = rank.get(row.query_id, 0) + 1
            file.write(f"{row.query_id} Q0 {row.doc_id} {rank[row.query_id]} {row.score:.6f} {name}\n")


def _json_lines(path: Path, required: tuple[str, ...]) -> Iterator[dict[str, str]]:
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise CollectionError(f"{path}:{number}: {error}") from None
                if missing := [key for key in required if key not in row]:
                    raise CollectionError(f"{path}:{number}: no {', '.join(missing)}")
                yield row
    except OSError as error:
        raise CollectionError(f"{path}: {error.strerror}") from None


def _qrels(path: Path) -> Iterator[Qrel]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file, delimiter="\t")
        next(rows, None)  # names of the columns
        for number, row in enumerate(rows, 2):
            try:
                query_id, doc_id, grade = row
                yield Qrel(query_id, doc_id, int(grade))
            except ValueError:
                raise CollectionError(f"{path}:{number}: want query, document, grade; got {row}") from None
