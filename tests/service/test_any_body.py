"""No body, however strange, gets a 5xx or another shape than the two that are promised."""

import asyncio
import json

import httpx
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eti_rank.service.app import create_app
from eti_rank.service.backend import assemble
from eti_rank.service.schemas import ErrorOut, RerankIn, RerankOut
from eti_rank.settings import LimitSettings, Settings
from tests.rerank_double import DoubleModel, scripted_engine

TEXT = st.text(st.characters(), max_size=8)  # surrogates included
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
DOCUMENTS = st.lists(
    TEXT
    | st.fixed_dictionaries({"text": TEXT}, optional={"id": TEXT, "title": TEXT, "first_stage_score": VALUES})
    | VALUES,
    max_size=6,
)
BODIES = st.fixed_dictionaries(
    {"query": TEXT | VALUES, "documents": DOCUMENTS | VALUES},
    optional={name: VALUES for name in RerankIn.model_fields if name not in {"query", "documents"}},
)


async def ask(content: bytes) -> httpx.Response:
    limits = LimitSettings(max_documents=5, max_document_bytes=12, max_body_bytes=2000)
    backend = assemble(Settings(), DoubleModel(), scripted_engine)
    await backend.engine.start()
    transport = httpx.ASGITransport(create_app(backend, limits), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.post("/rerank", content=content, headers={"content-type": "application/json"})
    await backend.engine.close()
    return response


def check(content: bytes) -> httpx.Response:
    response = asyncio.run(ask(content))
    assert response.status_code in {200, 400, 413, 422}
    (RerankOut if response.status_code == 200 else ErrorOut).model_validate_json(response.content)
    return response


@given(body=BODIES)
@example(body={"query": "q", "documents": [{"text": "a", "first_stage_score": -0.0}], "top_n": 10**30})
@example(body={"query": "q", "documents": ["a"], "budget": {"max_ms": 1e308, "max_tokens": 10**400}})
@example(body={"query": "q", "documents": ["\0", "\u2028", "\ufeff"], "max_tokens_per_doc": 2**63})
@settings(max_examples=150, deadline=None)
def test_any_json(body: dict) -> None:
    response = check(json.dumps(body).encode())
    if response.status_code == 200:
        indices = [row["index"] for row in response.json()["results"]]
        expected = min(body.get("top_n") or len(body["documents"]), len(body["documents"]))
        assert len(set(indices)) == len(indices) == expected


@given(content=st.binary(max_size=200))
@settings(max_examples=50, deadline=None)
def test_any_bytes(content: bytes) -> None:
    check(content)
