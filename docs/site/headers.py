"""A directive for Sphinx: `.. headers:: plan` is the reference of all headers of include/syncopate/plan."""

from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

INCLUDE = Path(__file__).resolve().parents[2] / "include" / "syncopate"


class Headers(Directive):
    required_arguments = 1

    def run(self):
        folder = INCLUDE / self.arguments[0]
        walk = folder.glob if folder == INCLUDE else folder.rglob
        found = sorted([*walk("*.hpp"), *walk("*.cuh")])
        if not found:
            raise self.error(f"there is no header in {folder}")
        lines = []
        for header in found:
            title = str(header.relative_to(INCLUDE))
            lines += [title, "-" * len(title), "", f".. doxygenfile:: syncopate/{title}", ""]
        node = nodes.section()
        node.document = self.state.document
        self.state.nested_parse(StringList(lines, source=""), self.content_offset, node, match_titles=True)
        return node.children


def setup(app):
    app.add_directive("headers", Headers)
    return {"parallel_read_safe": True}
