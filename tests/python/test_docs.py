"""The pages of docs/: short sentences, few words, links that hold, and no comment that names a page that is gone."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from conftest import ROOT

MOST_WORDS = 33_000  # of all pages; what a script writes is not counted
MOST_WORDS_OF_A_SENTENCE = 38
PAGES = sorted((ROOT / "docs").rglob("*.md"))
OTHERS = [*sorted(ROOT.glob("*.md")), ROOT / "bench" / "results" / "tables.md"]
GENERATED = {"versions.md"}

CODE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
TABLE = re.compile(r"<!-- table: .*?<!-- end of table -->", re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
NAMED = re.compile(r"\bdocs/[\w/.-]+?\.md(?:#[\w-]+)?")
SOURCES = ("include", "src", "python", "tools", "tests", "bench", "scripts", "share", "examples", "cmake")
ENDINGS = {".hpp", ".cpp", ".cu", ".cuh", ".py", ".sh", ".json", ".cmake", ""}


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def slugs(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text()), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", LINK.sub(lambda link: link[0][1:].split("]")[0], heading).lower())
        slug = slug.replace(" ", "-")
        found.add(
            slug
            if slug not in found
            else next(f"{slug}-{n}" for n in range(1, 99) if f"{slug}-{n}" not in found)
        )
    return found


def sentences(text: str) -> list[str]:
    """Of the prose of a page: no code, tables, headings or drawings."""
    text = re.sub(r"^(    |#|\||!\[|<).*$", "", CODE.sub("\n\n", TABLE.sub("", text)), flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", "code", LINK.sub("link", text))
    blocks = re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) ", text, flags=re.MULTILINE)
    return [one for block in blocks for one in re.split(r"(?<=[.!?])\s+", " ".join(block.split())) if one]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=named)
def test_no_sentence_is_long(page):
    long = [one for one in sentences(page.read_text()) if len(one.split()) > MOST_WORDS_OF_A_SENTENCE]
    assert not long


def test_the_pages_together_are_short():
    words = {
        named(page): len(TABLE.sub("", page.read_text()).split())
        for page in PAGES
        if page.name not in GENERATED
    }
    assert sum(words.values()) <= MOST_WORDS, words


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=named)
def test_links_hold(page):
    for link in LINK.findall(CODE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / unquote(path)).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or target.suffix != ".md" or unquote(anchor) in slugs(target), (
            f"{link}: no such heading"
        )


def test_comments_name_pages_that_are_there():
    wrong = []
    for folder in SOURCES:
        for file in (ROOT / folder).rglob("*"):
            if (
                file.suffix not in ENDINGS
                or not file.is_file()
                or "__pycache__" in file.parts
                or file == Path(__file__)
            ):
                continue
            for link in NAMED.findall(file.read_text(errors="replace")):
                path, _, anchor = link.partition("#")
                there = (ROOT / path).exists() and (not anchor or anchor in slugs(ROOT / path))
                if not there and path.removeprefix("docs/") not in GENERATED:
                    wrong.append(f"{named(file)}: {link}")
    assert not wrong


CITED = re.compile(r"\[(P\d+(?:, P\d+)*)\]")
PLACE = re.compile(r"`([\w.]+):(\w+)`")
SPELLINGS = [
    file
    for folder in ("include", "src", "python")
    for file in (ROOT / folder).rglob("*")
    if file.suffix in ENDINGS and file.is_file() and "__pycache__" not in file.parts
]


def rules_cited(text: str) -> set[str]:
    return {rule for cited in CITED.findall(text) for rule in cited.split(", ")}


def test_each_rule_of_the_protocol_is_cited_and_each_that_is_cited_is_there():
    rules = re.findall(r"^- \*\*(P\d+) ", (ROOT / "docs" / "protocol.md").read_text(), re.MULTILINE)
    assert rules == [f"P{n}" for n in range(1, len(rules) + 1)]
    cited = set().union(*(rules_cited(file.read_text(errors="replace")) for file in SPELLINGS))
    assert cited == set(rules)


def test_the_places_that_the_protocol_names_are_there_and_cite_the_rule():
    rows = re.findall(r"^\|(P\d+)\|(.*)$", (ROOT / "docs" / "protocol.md").read_text(), re.MULTILINE)
    assert rows
    wrong = []
    for rule, places in rows:
        for name, function in PLACE.findall(places):
            texts = [file.read_text() for file in SPELLINGS if file.name == name]
            if not any(re.search(rf"\b{function}\b", text) and rule in rules_cited(text) for text in texts):
                wrong.append(f"{rule}: {name}: {function}")
    assert not wrong
