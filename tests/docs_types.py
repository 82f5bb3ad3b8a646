"""Checks the Python of the pages and of the examples with mypy --strict and pyright: `python
tests/docs_types.py`.

A block that names its file is a module. The other blocks of a page are one coroutine, in which
names that only the reader has are unknown. Blocks with tests are left out.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import indent

from readme_blocks import HAS_ITS_OWN_LOOP, ROOT, blocks

README, COOKBOOK = ROOT / "README.md", ROOT / ".docs" / "cookbook"
PAGES = [
    README,
    *sorted(COOKBOOK.parent.glob("[cg]*/*.md")),
    *sorted((ROOT / "purgatory").rglob("*.md")),
]
FOLDERS = [ROOT / "examples", ROOT / "examples" / "recipes"]
EXAMPLES = [file for folder in FOLDERS for file in sorted(folder.glob("[a-z]*.py"))]
EXAMPLES.append(ROOT / "tests" / "asgi" / "types_of_values.py")
FILE = re.compile(r"# (\w+\.py)\n")
TEST = re.compile(r"^(?:async )?def (?:test_|pytest_)|^@pytest", re.MULTILINE)
NAMES_OF_THE_READER = """# mypy: disable-error-code=name-defined
# pyright: reportUndefinedVariable=false
"""
# Packages without types, such as Django and Celery, are unknown to both checkers.
MYPY = ["--strict", "--python-version=3.11", "--cache-dir=.mypy_cache"]
MYPY += [f"--disable-error-code={code}" for code in ("import-untyped", "untyped-decorator")]
PYRIGHT = {
    "extraPaths": [str(ROOT / "examples"), str(ROOT)],
    "pythonVersion": "3.11",
    "reportFunctionMemberAccess": False,
    "reportMissingModuleSource": False,
    "useLibraryCodeForTypes": False,
}


def modules(page: Path) -> dict[str, str]:
    """The modules that the blocks of a page make up, by file name."""
    found: dict[str, str] = {}
    for block in blocks(page, "python"):
        if TEST.search(block.text):
            continue
        if file := FILE.match(block.text):
            found[file[1]] = found.get(file[1], "") + block.text
        elif HAS_ITS_OWN_LOOP.search(block.text) or page == README:
            found[f"line_{block.line}.py"] = NAMES_OF_THE_READER + block.text
        else:
            page_so_far = found.get("page.py", f"{NAMES_OF_THE_READER}async def page() -> None:\n")
            found["page.py"] = page_so_far + indent(block.text, "    ")
    return found


def write_pages(folder: Path) -> None:
    """Writes each page as a package, and the cookbook, whose recipes import each other, as
    modules."""
    for page in PAGES:
        place = folder
        if page.parent != COOKBOOK:
            place = folder / re.sub(r"\W+", "_", page.relative_to(ROOT).with_suffix("").as_posix())
            place.mkdir()
            (place / "__init__.py").touch()
        for name, text in modules(page).items():
            assert not (place / name).exists(), f"{page.name}: another recipe has {name}, too"
            (place / name).write_text(text, encoding="utf-8")


def main() -> int:
    """Returns the exit status: 1 if a checker has found an error."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_pages(folder)
        pages = sorted(folder.iterdir())
        include = [os.path.relpath(path, folder) for path in (*pages, *EXAMPLES)]
        settings = json.dumps({"include": include, **PYRIGHT})
        (folder / "pyrightconfig.json").write_text(settings, encoding="utf-8")
        checks = [
            ["mypy", *MYPY, *pages, *EXAMPLES],
            ["pyright", "--pythonpath", sys.executable, "--project", folder],
        ]
        statuses = [
            subprocess.run([sys.executable, "-m", *check], cwd=folder, check=False).returncode
            for check in checks
        ]
    return max(statuses)


if __name__ == "__main__":
    raise SystemExit(main())
