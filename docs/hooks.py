"""Pages of the site from files outside of docs/, and conversion of math to MathML.

README.md becomes the first page, and every file that a page links to becomes a page, notebooks with
their outputs. Links are relative to the page in the repository, so no address of the repository is
needed. Browsers render MathML without scripts.
"""

import html
import json
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
MATH = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
WITH_LINKS = (".md", ".ipynb")
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of files outside of docs/, and of files that they link to."""
    waiting = [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        *(f"docs/{f.src_uri}" for f in files.documentation_pages()),
    ]
    seen = set(waiting)
    for path in waiting:  # the list grows
        if not path.startswith("docs/"):
            files.append(File.generated(config, page_of(path), content=text_of(path)))
        if path.endswith(WITH_LINKS):
            linked = sorted(targets(path) - seen)
            waiting += [p for p in linked if not p.startswith("docs/") and (ROOT / p).is_file()]
            seen.update(linked)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Return the page with links that are valid on the site."""
    path = repository_path(page.file.src_uri)
    if not path.endswith(WITH_LINKS):
        return markdown
    folder = os.path.dirname(page.file.src_uri) or "."

    def moved(link: re.Match[str]) -> str:
        target = resolved(path, link[1])
        return (
            link[0]
            if target is None
            else os.path.relpath(page_of(target), folder) + (link[2] or "")
        )

    return LINK.sub(moved, markdown)


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """Return the page with its math as MathML.

    Without latex2mathml, the math remains LaTeX source.
    """
    try:
        from latex2mathml.converter import convert
    except ImportError:
        return content

    def to_mathml(found: re.Match[str]) -> str:
        display = "inline" if found[2] == "(" else "block"
        return convert(html.unescape(found[3]), display=display)

    return MATH.sub(to_mathml, content)


def page_of(path: str) -> str:
    """Return the page of a file of the repository."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repository/{path}" if path.endswith(".md") else f"repository/{path}.md"


def repository_path(page: str) -> str:
    """Return the file of a page, the inverse of `page_of`."""
    if page == "index.md":
        return "README.md"
    if not page.startswith("repository/"):
        return f"docs/{page}"
    path = page.removeprefix("repository/")
    return path if (ROOT / path).is_file() else path.removesuffix(".md")


def text_of(path: str) -> str:
    text = (ROOT / path).read_text()
    if path.endswith(".md"):
        return text
    if path.endswith(".ipynb"):
        return "\n\n".join(map(cell_text, json.loads(text)["cells"])) + "\n"
    return f"# {path}\n\n````{LANGUAGES.get(Path(path).suffix, 'text')}\n{text}````\n"


def cell_text(cell: dict[str, Any]) -> str:
    """Return a cell of a notebook as Markdown, with its outputs."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    return "\n\n".join([f"````python\n{source}\n````", *map(output_text, cell["outputs"])])


def output_text(output: dict[str, Any]) -> str:
    """Return an output of a cell: its image, its HTML, its text or its error."""
    data = output.get("data", {})
    if "image/png" in data:
        picture = "".join(data["image/png"]).replace("\n", "")
        return f'<p><img alt="output" src="data:image/png;base64,{picture}"></p>'
    if "text/html" in data:
        # An empty line would end the block of HTML in Markdown.
        lines = "".join(data["text/html"]).splitlines()
        return "\n".join(["<div>", *(line for line in lines if line.strip()), "</div>"])
    lines = output.get("text", data.get("text/plain", ""))
    if output["output_type"] == "error":
        lines = "\n".join(output["traceback"])
    text = "".join(lines).rstrip("\n")
    return f"````text\n{text}\n````"


def targets(path: str) -> set[str]:
    """Return the files of the repository that a page links to."""
    found = (resolved(path, link[1]) for link in LINK.finditer(text_of(path)))
    return {target for target in found if target is not None}


def resolved(path: str, link: str) -> str | None:
    """Return the file of the repository that a link leads to.

    The result is None for addresses and missing files.
    """
    target = os.path.normpath(os.path.join(os.path.dirname(path), link))
    return target if "://" not in link and (ROOT / target).exists() else None
