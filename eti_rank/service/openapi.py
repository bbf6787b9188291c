"""The published description of the API.

The rerank routes read their bodies themselves (see `connection`), so the framework does not know
the body's schema; it is added here.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from eti_rank.service.schemas import RerankIn

REF: str = "#/components/schemas/{model}"
BODY_REF: dict[str, Any] = {
    "required": True,
    "content": {"application/json": {"schema": {"$ref": REF.format(model="RerankIn")}}},
}


def openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document."""
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    body = RerankIn.model_json_schema(ref_template=REF)
    schemas: dict[str, Any] = document["components"]["schemas"]
    schemas |= body.pop("$defs")
    body["properties"]["documents"]["items"] = {
        "anyOf": [{"type": "string"}, {"$ref": REF.format(model="DocumentIn")}]
    }
    schemas["RerankIn"] = body
    return document
