"""How the site is built: ``make docs``. Nothing is fetched, and a warning is an error."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perturb_mpm.cli import app as commands
from perturb_mpm.run.settings import settings_reference
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
exclude_patterns = ["_build", "_templates", "gallery"]
templates_path = ["_templates"]
smartquotes = False  # would make one dash of the two of an option

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
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
html_extra_path = ["gallery"]  # reports that open without an installation
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
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system
html_sidebars = {"index": [], "tutorial": [], "changelog": []}

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
COMMANDS, SETTINGS = "<!-- commands -->", "<!-- settings -->"
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
    text = text[first:].replace(" *[default: False]*", "")  # of flags
    return re.sub(r"^(\*\*\w[^*\n]*\*\*):$", r"\1", text, flags=re.MULTILINE)


def settings_block() -> str:
    """Return the settings file with every key and a comment on each."""
    return f"```toml\n{settings_reference()}```"


def link_in_site(found: re.Match[str], page: Path) -> str:
    """Return a link that leads to a page of the site, or to no page but the name of the file."""
    text, target, anchor = found.groups()
    place = (page.parent / target).resolve()
    if place.is_file() and place.is_relative_to(DOCS):
        return found.group()
    if target.startswith("docs/"):  # from a page that lies beside docs/
        return f"[{text}]({target.removeprefix('docs/')}{anchor or ''})"
    name = target.removeprefix("../")
    if name in PAGES:
        return f"[{text}]({PAGES[name]}{anchor or ''})"
    return f"{text} (`{name}` in the source)" if (ROOT / name).is_file() else found.group()


def read_source(app: Sphinx, name: str, source: list[str]) -> None:
    """Put files from elsewhere and the commands into their pages; keep links inside the site."""
    page = Path(app.env.doc2path(name))
    text = WHOLE_FILE.sub(lambda found: (ROOT / found.group(1)).read_text(), source[0])
    text = re.sub(
        r"\[([^\]]*)\]\(([^)#:]+)(#[^)]*)?\)", lambda found: link_in_site(found, page), text
    )
    for mark, written in ((COMMANDS, command_reference), (SETTINGS, settings_block)):
        if mark in text:
            text = text.replace(mark, written())
    source[0] = text


class SourceText(str):
    """An annotation as it stands in the source, shown without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def read_signature(
    _app: Sphinx,
    what: str,
    _name: str,
    value: Any,  # noqa: ANN401 - a class or a function
    _options: object,
    arguments: str | None,
    result: str | None,
) -> tuple[str | None, str | None]:
    """Show types as the source writes them: ArrayLike alone is made of six others."""
    if arguments is None:
        return arguments, result
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return arguments, result
    parameters = list(signature.parameters.values())
    if what == "method" and not inspect.ismethod(value):
        parameters = parameters[1:]  # self
    shown = [each.replace(annotation=_as_written(each.annotation)) for each in parameters]
    returned = signature.return_annotation
    if what == "class" or returned is inspect.Signature.empty:
        returned = None
    return str(inspect.Signature(shown)), returned


def _as_written(annotation: object) -> object:
    return SourceText(annotation) if isinstance(annotation, str) else annotation


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
    app.connect("autodoc-process-signature", read_signature)
    app.connect("autodoc-process-docstring", read_docstring, priority=400)
