"""The application: routes, errors, the boundary, and the engine's life around them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import eti_rank
from eti_rank.errors import EtiRankError
from eti_rank.service import problems
from eti_rank.service.backend import Backend
from eti_rank.service.boundary import Boundary
from eti_rank.service.openapi import openapi
from eti_rank.service.routes import create_router
from eti_rank.settings import LimitSettings


def create_app(backend: Backend, limits: LimitSettings) -> FastAPI:
    """The service around a backend.

    The engine starts in the background when the application does, so /healthz answers at once and
    /readyz says how far it is; it is closed when the application ends.
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        backend.engine.launch()
        try:
            yield
        finally:
            await backend.engine.close()

    app = FastAPI(
        title="eti-rank",
        version=eti_rank.__version__,
        description=eti_rank.__doc__ or "",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    app.include_router(create_router(backend, limits))
    app.add_exception_handler(EtiRankError, problems.on_our_error)
    app.add_exception_handler(HTTPException, problems.on_framework_error)
    app.add_exception_handler(RequestValidationError, problems.on_validation_error)
    app.add_middleware(Boundary)
    app.openapi = lambda: openapi(app)  # type: ignore[method-assign]
    return app
