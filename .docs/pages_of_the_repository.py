"""A hook of MkDocs: the pages of the repository become pages of the site, where they lie, with their pictures.

A link to a folder leads to its page. Code is not on the site, so what would be a link to it is only its text.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
FILES = ["*.md", ".github/*.md", ".pictures/*.*g", "examples/broker/*.svg"]
FILES += [f"{folder}/**/*.md" for folder in ("examples", "purgatory", "tests")]
LINK = re.compile(r"(?<!!)\[([^]]*)\]\((?!https?:)([^)#]*)(#[^)]*)?\)")


def is_page(path: Path) -> bool:
    """Whether a file of the repository is a page of the site, if it is there."""
    folders = path.relative_to(ROOT).parts[:-1]
    return path.suffix == ".md" and (not folders or folders[0] in {".github", "examples", "purgatory", "tests"})


def without_dots(text: str) -> str:
    """Text with other names for the hidden folders, since many web servers hide them, too."""
    return re.sub(r"""(^|[("/ ])\.(github|pictures)/""", r"\1\2/", text)


def with_links_of_the_site(text: str, page: Path) -> str:
    """The text of a page, with links that lead to pages of the site, or nowhere."""

    def link(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        path = (page.parent / target).resolve() if target else page
        if path.is_dir() and (path / "README.md").is_file():
            path, target = path / "README.md", f"{target.rstrip('/')}/README.md"
        return f"[{label}]({target}{anchor})" if is_page(path) else label

    return without_dots(LINK.sub(link, text))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages and pictures of the repository."""
    for path in sorted(path for pattern in FILES for path in ROOT.glob(pattern)):
        name = without_dots(path.relative_to(ROOT).as_posix())
        content = with_links_of_the_site(path.read_text("utf-8"), path) if path.suffix == ".md" else path.read_bytes()
        files.append(File.generated(config, name, content=content, inclusion=InclusionLevel.INCLUDED))
    return files
