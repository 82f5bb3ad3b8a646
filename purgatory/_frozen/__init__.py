"""Where PyInstaller finds the hook for this package: what it cannot see by itself."""

from pathlib import Path


def hook_dirs() -> list[str]:
    """The folder with the hook, for the entry point `pyinstaller40`."""
    return [str(Path(__file__).parent)]
