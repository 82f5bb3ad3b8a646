"""The dependencies: a clone needs its own `asyncio-purgatory`, as long as that is not on PyPI;
elsewhere its name is enough."""

from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Dependencies(MetadataHookInterface):
    """Adds `asyncio-purgatory` to those in `pyproject.toml`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling, with the metadata of the project."""
        clone = Path(self.root).parents[1]
        is_clone = (clone / "purgatory").is_dir()
        purgatory = (
            f"asyncio-purgatory @ {clone.as_uri()}" if is_clone else "asyncio-purgatory>=0.1"
        )
        metadata["dependencies"] = [purgatory, *self.config["dependencies"]]
