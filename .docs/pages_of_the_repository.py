"""A hook of MkDocs: the pages, pictures and examples of the repository become the site's.

A link to a folder leads to its page. Other code than the examples is not on the site: a link to it
becomes its text.
"""

import re
from pathlib import Path
from posixpath import dirname, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
FOLDERS = {
    ".docs/cookbook": "cookbook",
    ".docs/guide": "guide",
    ".github": "project",
    ".pictures": "pictures",
}  # many web servers hide .names
FILES = [
    "README.md",
    ".docs/cookbook/*.md",
    ".docs/guide/*.*",
    ".github/C*.md",
    ".github/SECURITY.md",
    ".pictures/*.*g",
    "examples/broker/*.svg",
]
FILES += [f"{folder}/**/*.md" for folder in ("examples", "purgatory", "tests")]
LINK = re.compile(r"(?<!!)\[([^]]*)\]\((?!https?:)([^)#]*)(#[^)]*)?\)")
PICTURE = re.compile(r"""(!\[[^]]*\]\(|src="|srcset=")(?!https?:)([^)"]+)""")
# The theme's toggle selects among pictures by the end of their addresses.
DARK_AND_LIGHT = re.compile(
    r'<picture><source [^>]*srcset="([^"]+)"><img (alt="[^"]*") src="([^"]+)"></picture>'
)
EXAMPLES = sorted(
    path for glob in ("[a-z]*.py", "recipes/*.py") for path in (ROOT / "examples").glob(glob)
)


def name_on_site(path: Path) -> str:
    """Where a file of the repository is on the site."""
    name = path.relative_to(ROOT).as_posix()
    folder = dirname(name)
    return FOLDERS.get(folder, folder) + name.removeprefix(folder) if folder else name


def with_links_of_the_site(text: str, page: Path) -> str:
    """The text of a page, with the links and pictures of the site."""

    def target(name: str) -> Path:
        path = (page.parent / name).resolve() if name else page
        return path / "README.md" if (path / "README.md").is_file() else path

    def link_to(path: Path) -> str:
        return relpath(name_on_site(path), dirname(name_on_site(page)) or ".")

    def link(match: re.Match[str]) -> str:
        label, name, anchor = match[1], match[2], match[3] or ""
        path = target(name)
        if path in EXAMPLES:
            path = path.with_suffix(".md")
        return f"[{label}]({link_to(path)}{anchor})" if path.suffix == ".md" else label

    text = LINK.sub(link, text)
    text = PICTURE.sub(lambda match: match[1] + link_to(target(match[2])), text)
    return DARK_AND_LIGHT.sub(r'<img \2 src="\3#only-light"><img \2 src="\1#only-dark">', text)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages, pictures and examples of the repository."""
    for path in sorted(path for pattern in FILES for path in ROOT.glob(pattern)):
        content = (
            with_links_of_the_site(path.read_text("utf-8"), path)
            if path.suffix == ".md"
            else path.read_bytes()
        )
        files.append(
            File.generated(
                config, name_on_site(path), content=content, inclusion=InclusionLevel.INCLUDED
            )
        )
    for path in EXAMPLES:
        code = f"# {path.name}\n\n```python\n{path.read_text('utf-8')}```\n"
        name = name_on_site(path.with_suffix(".md"))
        files.append(
            File.generated(config, name, content=code, inclusion=InclusionLevel.NOT_IN_NAV)
        )
    return files
