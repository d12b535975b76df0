"""What every bench does: its options, its start on the ranks (one process a GPU, or two on the host, or those of torchrun),
and the tables that it leaves."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from ..command.standard_output import answering
from .picture import HOST_NOTE, HOST_RANKS, draw, require_matplotlib
from .table import Form, to_markdown, write_csv

PLOT_SUFFIXES = (".svg", ".png", ".pdf")
OUTPUTS = ("json", "csv", "markdown", "plot")
STANDARD_OUTPUT = "-"


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as all commands do."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")


def count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: expected a whole number of at least 1")
    return value


def add_options(parser: argparse.ArgumentParser, over: str) -> None:
    """`over`: along what the plot is; "": there is none."""
    parser.add_argument("--ranks", type=count, help="processes (default: every GPU, or two on host)")
    parser.add_argument("--peer", action="append", default=[], metavar="FILE.py", help="one more peer")
    parser.add_argument("--rounds", type=count, help="default: 15; on host 1")
    parser.add_argument(
        "--budget", type=float, default=600, help="seconds after which no further shape begins"
    )
    parser.add_argument(
        "--json", default="", help="write the report here, as bench/results.py takes it; -: to stdout"
    )
    parser.add_argument("--csv", default="", help="write a line a shape here; -: to stdout")
    parser.add_argument("--markdown", default="", help="write tables here; -: to stdout")
    if over:
        parser.add_argument("--plot", default="", help=f"draw speed over {over} here: FILE.svg, .png or .pdf")
    else:
        parser.set_defaults(plot="")


def parse_options(parser: argparse.ArgumentParser, arguments: list[str] | None) -> argparse.Namespace:
    options = parser.parse_args(arguments)
    for name in OUTPUTS:
        file = getattr(options, name)
        if file and not Path(file).absolute().parent.is_dir():
            parser.error(f"--{name} {file}: no such folder")
        if file and Path(file).is_dir():
            parser.error(f"--{name} {file}: is a folder; expected a file")
    if options.plot and Path(options.plot).suffix.lower() not in PLOT_SUFFIXES:
        parser.error(f"--plot {options.plot}: expected FILE{' or FILE'.join(PLOT_SUFFIXES)}")
    answers = [f"--{name}" for name in OUTPUTS if getattr(options, name) == STANDARD_OUTPUT]
    if len(answers) > 1:
        parser.error(f"{' and '.join(answers)}: one of them can be the standard output")
    return options


@contextlib.contextmanager
def answered(options: argparse.Namespace) -> Iterator[None]:
    """Around a run. Where a file is "-", what is written there is all that the standard output gets, once the run has ended; what
    is said besides, by whatever rank, goes to the standard error."""
    name = next((name for name in OUTPUTS if getattr(options, name) == STANDARD_OUTPUT), None)
    if name is None:
        yield
        return
    if sys.stdout is None:
        raise ValueError(f"--{name} {STANDARD_OUTPUT}: the standard output is closed")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        setattr(options, name, str(file))
        sys.stdout.flush()
        output = os.dup(1)
        os.dup2(2, 1)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            os.dup2(output, 1)
            os.close(output)
        if file.exists():
            with answering():
                sys.stdout.write(file.read_text())


def write_tables(report: dict[str, Any], options: argparse.Namespace, form: Form) -> int:
    """Writes what was asked for besides the report, and prints the tables. Returns the exit code."""
    if options.csv:
        write_csv(form.lines(report), Path(options.csv), columns=form.columns)
    text = to_markdown(report, form)
    if report["machine"].endswith(HOST_RANKS):
        text = f"{HOST_NOTE}\n\n{text}"
    if options.markdown:
        Path(options.markdown).write_text(text)
    with answering():
        print("\n" + text, end="")
    if options.plot:
        draw(report, options.plot, form)
    return 1 if any("error" in entry for entry in report["table"]) else 0


def launch(
    options: argparse.Namespace,
    check: Callable[[argparse.Namespace], None],
    run_all: Callable[[argparse.Namespace], dict[str, Any]],
    form: Form,
) -> int:
    """`check` raises ValueError for what is wrong on the command line, before any rank starts; `run_all` makes the report on
    each rank, which is written once, in this form. Returns the exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from ..ranks import RankError, gpu_count, run
    from .session import start

    try:
        gpus = gpu_count()
    except RankError:
        gpus = 0
    if not gpus:
        from ..host.interpreter import enable

        enable()  # before the kernels are imported
    options.rounds = options.rounds or (15 if gpus else 1)
    try:
        check(options)
        if options.plot:
            require_matplotlib()
        with answered(options):
            if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
                start(0, 0, "")
                report = run_all(options)
                return write_tables(report, options, form) if int(os.environ["RANK"]) == 0 else 0
            ranks = options.ranks or (gpus or 2)
            if gpus and ranks > gpus:
                raise RankError(f"{ranks} ranks need {ranks} GPUs, this machine has {gpus}", 3)

            def work(place: Any) -> dict[str, Any]:
                start(place.rank, place.size, f"file://{place.folder}/process-group")
                return run_all(options)

            return write_tables(run(ranks, work, timeout=options.budget + 1800)[0], options, form)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename or 'a file of the bench'}: {error.strerror}", file=sys.stderr)
        return 1
    except RuntimeError as error:
        code = getattr(error, "exit_code", None)
        if code is None:
            raise
        print(f"error: {error}", file=sys.stderr)
        return int(code)
