"""Outcomes as FastAPI responses: Starlette's responses, with FastAPI's encoding of values."""

from typing import Any, Final

from fastapi.encoders import jsonable_encoder

from purgatory.asgi._starlette import FRAMEWORK as STARLETTE
from purgatory.asgi._starlette import StarletteOutcome


class FastAPIOutcome(StarletteOutcome):  # type: ignore[misc]  # final for users
    """An outcome whose value may be a model."""

    def _encodable(self, value: Any) -> Any:
        return jsonable_encoder(value)


FRAMEWORK: Final = STARLETTE._replace(outcome=FastAPIOutcome)
