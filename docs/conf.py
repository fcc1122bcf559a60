"""How the site is built: ``make docs``. Nothing is fetched, and a warning is an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from perturb_mpm.cli.app import app as commands
from perturb_mpm.version import version as installed_version

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "perturb-mpm"
author = "the perturb-mpm developers"
project_copyright = author
version = release = installed_version()

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]
smartquotes = False  # would make one dash of the two of an option

myst_enable_extensions = ["attrs_block", "colon_fence"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autosummary_imported_members = True
numpydoc_show_class_members = False  # the template lists them
maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "pydata_sphinx_theme"
html_title = "perturb-mpm"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {
    "logo": {"text": "perturb-mpm"},
    "header_links_before_dropdown": 6,
    "show_prev_next": False,
    "navbar_align": "left",
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": [], "tutorial": [], "changelog": []}

ROOT = Path(__file__).parents[1]
COMMANDS = "<!-- commands -->"
WHOLE_FILE = re.compile(r"<!-- all of (\w+\.md) -->")
PAGES = {  # files beside docs/ that are pages of the site
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}


def command_reference() -> str:
    """Return every command with its options in Markdown, as the parser itself knows them."""
    text = commands.generate_docs(output_format="markdown")
    first = text.index("\n## perturb-mpm ")  # before it: a table of contents, which the theme makes
    return re.sub(r"^(\*\*\w[^*\n]*\*\*):$", r"\1", text[first:], flags=re.MULTILINE)


def link_in_site(found: re.Match[str]) -> str:
    """Return a link that leads to a page of the site, or to no page but the name of the file."""
    text, target, anchor = found.groups()
    if target.startswith("docs/"):
        return f"[{text}]({target.removeprefix('docs/')}{anchor or ''})"
    name = target.removeprefix("../")
    if name in PAGES:
        return f"[{text}]({PAGES[name]}{anchor or ''})"
    if target.startswith("../") or (ROOT / target).is_file():
        return f"{text} (`{name}` in the source)"
    return found.group()


def read_source(_app: Sphinx, _name: str, source: list[str]) -> None:
    """Put files from elsewhere and the commands into their pages; keep links inside the site."""
    text = WHOLE_FILE.sub(lambda found: (ROOT / found.group(1)).read_text(), source[0])
    text = re.sub(r"\[([^\]]*)\]\(([^)#:]+)(#[^)]*)?\)", link_in_site, text)
    if COMMANDS in text:
        text = text.replace(COMMANDS, command_reference())
    source[0] = text


def read_docstring(
    _app: Sphinx, _what: str, _name: str, _object: object, _options: object, lines: list[str]
) -> None:
    """Take stars and bars in prose as they are: docstrings write (L, *spatial) and |A|."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = line.split("``")  # every other one is code
            parts[::2] = [re.sub(r"([*|])", r"\\\1", part) for part in parts[::2]]
            lines[number] = "``".join(parts)


def setup(app: Sphinx) -> None:
    """Hear when a page or a docstring is read, the latter before numpydoc does."""
    app.connect("source-read", read_source)
    app.connect("autodoc-process-docstring", read_docstring, priority=400)
