"""The tutorials and the pages of commands do what they show, typed as a reader would, on host ranks (tests/pages.py)."""

import os
import subprocess
import sys

import pages
import pytest
from conftest import BINARY, ROOT, warm_python

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate")
pytest.importorskip("matplotlib")

DOCS = ROOT / "docs"
TUTORIALS = sorted([*(DOCS / "tutorials").glob("*.md"), DOCS / "tutorial.md"])
#: Pages whose commands can be typed one after the other.
TYPED = [DOCS / f"{name}.md" for name in ("kernels", "plans", "topologies", "tuning")]


@pytest.fixture
def reader(tmp_path):
    """The environment of somebody who has installed Syncopate: the three commands that pages type."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, command in (
        ("python", f'"{warm_python()}"'),
        ("torchrun", f'"{warm_python()}" -m torch.distributed.run'),
        ("syncopate", f'"{BINARY}"'),
    ):
        (commands / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (commands / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "python"),
        "SYNCOPATE_PYTHON": warm_python(),
        "SYNCOPATE_CACHE_DIR": str(tmp_path / "cache"),
        "SYNCOPATE_TUNE": "read",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "CUDA_VISIBLE_DEVICES": "",
        "PET_STANDALONE": "1",  # torchrun finds a port: pages are followed side by side
    }


@pytest.mark.parametrize("page", [*TUTORIALS, *TYPED], ids=lambda page: page.stem)
def test_a_page_does_what_it_shows(page, reader, tmp_path):
    folder = tmp_path / "reader"
    folder.mkdir()
    said = ""
    try:
        assert pages.follow(page, folder, reader, installed=True) > 0
    except pages.PageError as error:
        said = str(error)
    if said:
        pytest.fail(said, pytrace=False)


WRONG = """
```python
# hello.py
print("hello")
```

```console
$ export NAME=you && mkdir -p deep && cd deep
$ python3 ../hello.py && echo "$NAME"
hello
you
…
$ ls nothing
error: …
```
"""


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (WRONG, "not there: error: …"),
        (WRONG.replace("\nhello\n", "\ngoodbye\n"), "not there: goodbye"),
        (WRONG.replace("$ ls nothing\nerror: …\n", "$ ls nothing\n"), "exit code 2"),
        (WRONG.replace("$ ls nothing\n", "$ echo error: a\n"), "exit code 0"),
        (WRONG.replace("$ ls nothing\n", "$ exit 3\n"), "exit code 255"),
    ],
)
def test_a_page_that_shows_what_does_not_happen_is_found(page, said, tmp_path):
    (tmp_path / "page.md").write_text(page)
    script = [sys.executable, ROOT / "tests" / "pages.py", tmp_path / "page.md"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 1
    assert said in done.stderr


def test_a_page_that_shows_what_happens_is_followed(tmp_path):
    (tmp_path / "page.md").write_text(WRONG.replace("$ ls nothing\n", "$ echo error: none && false\n"))
    script = [sys.executable, ROOT / "tests" / "pages.py", tmp_path / "page.md"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "page.md: 3 commands, all as shown\n"), done.stderr


def test_every_tutorial_is_named_by_the_first():
    first = (DOCS / "tutorial.md").read_text()
    assert [page.name for page in TUTORIALS if page.name not in first] == ["tutorial.md"]
