"""Metadata of the package that depends on the address of the repository.

README.md has relative links, which are valid in a checkout and on the documentation site. A package
index needs absolute ones.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")


class RepositoryMetadata(MetadataHookInterface):
    """Metadata hook of hatchling, configured in `[tool.hatch.metadata.hooks.custom]`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme` and `urls` from `[tool.rollax] repository`."""
        root = Path(self.root)
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        repository = project["tool"]["rollax"]["repository"]
        text = (root / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute_links(text, repository),
        }
        metadata["urls"] = {
            "Repository": repository,
            "Documentation": f"{repository}/tree/main/docs",
            "Changelog": f"{repository}/blob/main/CHANGELOG.md",
            "Issues": f"{repository}/issues",
        }


def absolute_links(text: str, repository: str) -> str:
    """Return Markdown in which relative links are replaced by addresses.

    Args:
        text: Markdown with links relative to the root of the repository.
        repository: Address of the repository, without a slash at the end.
    """

    def replace(link: re.Match[str]) -> str:
        target = link["target"]
        if "://" in target or target.startswith("#"):
            return link[0]
        view = "raw" if link["image"] else "blob"
        return f"{link['image']}[{link['text']}]({repository}/{view}/main/{target})"

    return LINK.sub(replace, text)
