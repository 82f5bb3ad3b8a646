"""Loads examples, and blocks of pages: `load(EXAMPLES / "long_poll.py")`. A client of them."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(path: Path) -> ModuleType:
    """A file as a new module under its name, with fresh globals, as its purgatories belong to one
    loop."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Django looks for it there
    spec.loader.exec_module(module)
    return module


def client_of(example: Any) -> httpx2.AsyncClient:
    """A client of `example.app`, on the loop of the test."""
    transport = httpx2.ASGITransport(example.app)
    return httpx2.AsyncClient(transport=transport, base_url="http://example")
