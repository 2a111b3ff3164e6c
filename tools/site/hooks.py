"""Hooks of mkdocs: generated pages, links out of docs/, formulas.

The site has every page of docs/ as it stands. Beside them it has the API, an index of the decisions
and each file of the repository that a page links to, so that no link leaves the site.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # mkdocs loads a hook by its path

from tools import licences  # noqa: E402
from tools.site import api, decisions, formulas, linked  # noqa: E402


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated."""
    pages = api.pages() | decisions.pages(ROOT) | linked.pages(ROOT) | licences.pages()
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    for uri, path in linked.pictures(ROOT).items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to files of the repository at their pages of the site."""
    plain = markdown.replace("```python fragment\n", "```python\n")  # a note for the tests
    return linked.relinked(ROOT, plain, page.file.src_uri)


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace formulas by MathML, which browsers draw without a script."""
    return formulas.rendered(html)
