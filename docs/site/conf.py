"""How Sphinx makes the site of docs/ (scripts/docs)."""

import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
MADE = Path(os.environ["SYNCOPATE_DOCS"])  # where scripts/docs puts everything
sys.path[:0] = [str(ROOT / "python"), str(Path(__file__).parent)]
os.environ["TRITON_INTERPRET"] = "1"

project = "Syncopate"
author = "the Syncopate authors"
extensions = [
    "breathe",
    "headers",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_external_toc",
]
# The source is the whole checkout, so that links lead from page to page as they do in the repository.
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "bench/results/tables.md",
    "docs/**",
]
exclude_patterns = [".*", "build*", "deps", "dist", "docs/site", "examples", "src", "tests", "tools"]
external_toc_path = str(Path(__file__).parent / "toc.yml")

myst_enable_extensions = ["linkify"]
myst_heading_anchors = 4  # as on GitHub, so that links hold in both
myst_linkify_fuzzy_links = False
suppress_warnings = [
    "duplicate_declaration.cpp",  # namespaces are named by each of their headers
    "misc.highlighting_failure",  # blocks with `…` are no whole programs
]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = False
add_module_names = False

breathe_projects = {"syncopate": str(MADE / "xml")}
breathe_default_project = "syncopate"
cpp_id_attributes = ["__device__", "__forceinline__", "__global__", "__grid_constant__", "__host__"]
primary_domain = None
highlight_language = "none"

html_theme = "furo"
html_title = "Syncopate"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
copybutton_line_continuation_character = "\\"


def plain_docstrings(app, what, name, obj, options, lines):
    """Docstrings are plain text, with `code`: paragraphs flow, lists stay lists, what is indented is shown as it is."""
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines).strip("\n"))
    lines[:] = "\n\n".join(map(marked_up, paragraphs)).splitlines()


def marked_up(paragraph):
    """Rows of prose, then items that begin with "- ", and so on; rows that are indented otherwise are shown as they are."""
    parts = []
    for row in paragraph.splitlines():
        if row.startswith("- "):
            parts.append(["item", row[2:]])
        elif parts and (row.startswith("  ") or parts[-1][0] == "prose"):
            parts[-1].append(row)
        else:
            parts.append(["prose", row])
    return "\n\n".join(map(marked_part, parts))


def marked_part(part):
    kind, *rows = part
    if kind == "item":
        return "- " + marked_words("\n".join(rows))
    if any(row.startswith("  ") for row in rows):
        return "::\n\n" + textwrap.indent(textwrap.dedent("\n".join(rows)), "    ")
    return marked_words("\n".join(rows))


def marked_words(text):
    parts = re.split(r"`([^`]+)`", " ".join(text.split()))
    words = [re.sub(r"([*|_\\<>])", r"\\\1", part) for part in parts[::2]]
    code = [f"\\ ``{part.strip()}``\\ " for part in parts[1::2]]
    return "".join(one for pair in zip(words, [*code, ""], strict=True) for one in pair)


def unwrap_device_functions(app):
    """What Triton has compiled or interprets is for autodoc a function."""
    from syncopate import gluon

    for name, value in vars(gluon).items():
        if inspect.isfunction(getattr(value, "fn", None)):
            setattr(gluon, name, value.fn)


def make_xml(app):
    """What Doxygen reads out of the headers."""
    settings = {
        "INPUT": ROOT / "include",
        "FILE_PATTERNS": "*.hpp *.cuh",
        "EXTENSION_MAPPING": "cuh=C++",
        "RECURSIVE": "YES",
        "GENERATE_XML": "YES",
        "GENERATE_HTML": "NO",
        "GENERATE_LATEX": "NO",
        "XML_OUTPUT": MADE / "xml",
        "XML_PROGRAMLISTING": "NO",
        "FILTER_PATTERNS": f'*="{sys.executable} {Path(__file__).parent / "header_filter.py"}"',
        "STRIP_FROM_INC_PATH": ROOT / "include",
        "JAVADOC_AUTOBRIEF": "YES",
        "QUIET": "YES",
        "WARNINGS": "NO",
        "WARN_LOGFILE": "/dev/null",
        "EXTRACT_ALL": "YES",
        "MACRO_EXPANSION": "YES",
        "INCLUDE_PATH": ROOT / "include",
        "PREDEFINED": " ".join(f"{word}=" for word in cpp_id_attributes),
        "NUM_PROC_THREADS": "1",
    }
    text = "".join(f"{name} = {value}\n" for name, value in settings.items())
    subprocess.run(["doxygen", "-"], input=text, text=True, check=True, cwd=ROOT)
    # Doxygen leaves folders out of names; several headers are called attention.hpp.
    index = MADE / "xml" / "index.xml"
    named = ElementTree.parse(index)
    for compound in named.iter("compound"):
        if compound.get("kind") == "file":
            page = (MADE / "xml" / f"{compound.get('refid')}.xml").read_text()
            compound.find("name").text = re.findall(r'<location file="include/([^"]*)"/>', page)[0]
    named.write(index)


def setup(app):
    app.connect("builder-inited", make_xml)
    app.connect("builder-inited", unwrap_device_functions)
    app.connect("autodoc-process-docstring", plain_docstrings)
