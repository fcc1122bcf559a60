"""What commands share: options, usage errors, the output folder, text, progress, last words."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from perturb_mpm.checks import ExpectedError, visible_text
from perturb_mpm.progress import Silent, StagedProgress
from perturb_mpm.storage import json_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress

    from perturb_mpm.cohort import CohortResult
    from perturb_mpm.run import Run


Flag = Annotated[bool, Parameter(negative="", show_default=False)]
"""An option that is given or not, without ``--no-``."""
Files = Annotated[tuple[Path, ...], Parameter(consume_multiple=True, negative="")]
"""An option with one path or several."""
Words = Annotated[tuple[str, ...] | None, Parameter(consume_multiple=True, negative="")]
"""An option with one word or several."""
Names = Annotated[
    tuple[str, ...], Parameter(consume_multiple=True, negative="", show_default=False)
]
"""The same, where no word is as good as none."""

MOST_WORKERS = 1024
EXIT_SOME_FAILED = 3
COHORT_OPTIONS = {"images": "images"}  # which ``run`` calls --image
_MOST_NAMED = 20  # failed cases
_NOT_ASCII = re.compile(r"[^\x00-\x7e]")
# Inside its texts JSON escapes the first 32 characters, but no others that a terminal may obey.
_HIDDEN_IN_JSON = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

# Arguments of Python whose option has another name.
_OPTION = {
    "inputs": "input",
    "images": "image",
    "raters": "rater",
    "regions": "region",
    "dicom_series": "dicom",
}


class UsageError(ExpectedError):
    """An option is wrong; the message says which, what it must be and what it got."""


def in_options(message: str, options: Mapping[str, str] | None = None) -> str:
    """Return an error's message with the arguments that stand in backticks written as options.

    ``options`` are those of one command whose name is not the usual one.
    """
    names = {**_OPTION, **(options or {})}

    def write_option(found: re.Match[str]) -> str:
        name, value = found.groups()
        option = f"--{names.get(name, name).replace('_', '-')}"
        return option if value in {None, "True"} else f"{option} {value.strip(chr(34))}"

    return re.sub(r"`([a-z_]+)(?:=([^`]+))?`", write_option, message)


@contextmanager
def usage_errors(start: str = "") -> Iterator[None]:
    """Turn what is wrong with values in the block into a UsageError that begins with ``start``."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise UsageError(f"{start}{error}") from error


def require_run(folder: Path, name: str) -> None:
    """Refuse what cannot be the folder of a run; ``name`` is the argument's."""
    if not folder.is_dir():
        raise UsageError(f"{name} must be the folder of a run, got {folder}, which is none")


def whole_number(value: int, option: str, smallest: int, largest: int) -> None:
    """Refuse a number outside the limits of its option."""
    if not smallest <= value <= largest:
        raise UsageError(f"{option} must be between {smallest} and {largest}, got {value}")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Show:
    """What a command prints; the last field of its options."""

    quiet: Flag = False
    """Print nothing, and show no progress."""
    json: Flag = False
    """Print the result as JSON instead of text."""

    def progress(self) -> AbstractContextManager[StagedProgress]:
        """Show progress on stderr, unless nothing is to be printed."""
        return shown_progress(quiet=self.quiet)

    def result(self, content: object, *parts: str | Table, files: Iterable[Path] = ()) -> None:
        """Print the result: its content as JSON, or as text the parts and which files it wrote."""
        if self.json:
            print_json(content)
        elif not self.quiet:
            print_plain(*parts, *(f"wrote {file}" for file in files))

    def warn(self, sentences: Iterable[str]) -> None:
        """Print warnings."""
        for words in sentences if not self.quiet else ():
            print_warning(words)


SHOW = Show()


def text_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    words: int = 1,
    **options: Any,  # noqa: ANN401 - rich's own
) -> Table:
    """Return a table whose first columns are ``words``, the others numbers; rich's options."""
    table = Table(**options)
    for column, heading in enumerate(headings):
        table.add_column(heading, justify="left" if column < words or not heading else "right")
    for row in rows:
        table.add_row(*row)
    return table


def plain_console(*, stderr: bool = False) -> Console:
    """Return a console that prints text as it is, tables included: brackets are never markup.

    Control characters in names of cases, labels and files are shown, and not obeyed.
    """
    from rich.console import Console
    from rich.text import Text

    class PlainConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401 - rich's own
            return super().render_str(printable(text), **options)

    return PlainConsole(stderr=stderr, markup=False, highlight=False, emoji=False)


def printable(text: str) -> str:
    """Return a text that a terminal shows and does not obey; lines and tabs stay."""
    return visible_text(text, allowed="\n\t")


def accept_all_characters() -> None:
    r"""Let stdout and stderr take any text: what their encoding lacks is written as \u2192."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_line(words: str, name: str = "perturb-mpm") -> None:
    """Print a line on stderr, after the name of the program."""
    sys.stderr.write(f"{name}: {printable(words)}\n")
    sys.stderr.flush()


def print_json(content: object) -> None:
    """Print one JSON object on stdout; NaN is null."""
    write_json_text(json_text(content))


def write_json_text(text: str) -> None:
    """Write JSON on stdout; what cannot be shown there is escaped as JSON has it."""
    is_utf8 = sys.stdout.encoding.lower().replace("-", "") == "utf8"
    hidden = _HIDDEN_IN_JSON if is_utf8 else _NOT_ASCII
    sys.stdout.write(hidden.sub(lambda found: json.dumps(found[0])[1:-1], text))
    sys.stdout.flush()


def print_plain(*parts: str | Table) -> None:
    """Print tables and lines on stdout, as they are; long lines are not folded."""
    console = plain_console()
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))


def print_warning(words: str) -> None:
    """Print a warning on stderr, its arguments written as options."""
    print_line(f"warning: {in_options(words)}")


def prepare_folder(folder: Path) -> Path:
    """Make ``folder`` where it is missing, and make sure that files can be put there."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--output must be a folder, got the file {folder}; name another one")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--output must be a folder that can be made, got {folder}: {error.strerror}"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"--output must be a folder you may write to, got {folder}")
    return folder


_SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def shown_progress(*, quiet: bool) -> Iterator[StagedProgress]:
    """Show progress on stderr in the form that suits it; if quiet, nothing, and no log's words."""
    if quiet:
        log = logging.getLogger("perturb_mpm")
        level = log.level
        log.setLevel(logging.ERROR)  # that kernels are compiled is a warning
        try:
            yield Silent()
        finally:
            log.setLevel(level)
    elif not sys.stderr.isatty():
        yield Lines()
    else:
        with _rich_bar() as bar:
            yield Bar(bar)


class Lines:
    """Plain lines: each stage, and during sampling one every few seconds."""

    def __init__(self) -> None:
        self._said = self._began = time.monotonic()
        self._first: float | None = None
        self._stage = "working"

    def stage(self, words: str) -> None:
        """Print what is being done now."""
        print_line(words)
        self._stage = words
        self._said = self._began = time.monotonic()
        self._first = None

    def warn(self, words: str) -> None:
        """Print a warning."""
        print_warning(words)

    def __call__(self, done: float, total: float, /) -> None:
        """Print how much is done, unless that was said just now."""
        now = time.monotonic()
        if self._first is None:
            self._first, self._began = done, now
        if now - self._said < _SECONDS_BETWEEN_LINES and done < total:
            return
        self._said = now
        drawn = done - self._first
        left = (now - self._began) / drawn * (total - done) if drawn else None
        rest = f", about {duration_in_words(left)} left" if left else ""
        print_line(f"{self._stage}: {done:g} of {total:g}{rest}")


class Bar:
    """A bar with the remaining time; warnings stay above it."""

    def __init__(self, bar: RichProgress) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None)

    def stage(self, words: str) -> None:
        """Name what is being done now; how much of it there is, is not known yet."""
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task(printable(words), total=None)

    def warn(self, words: str) -> None:
        """Print a warning above the bar."""
        self._bar.console.print(f"warning: {in_options(words)}")

    def __call__(self, done: float, total: float, /) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=done, total=total, refresh=True)


@contextmanager
def _rich_bar() -> Iterator[RichProgress]:
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    class Amount(ProgressColumn):
        """How much is done and how long the rest takes, or for how long it has gone on."""

        def render(self, task: Task) -> Text:
            return Text(amount_in_words(task.completed, task.total, task.elapsed))

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), Amount())
    with Progress(*columns, console=plain_console(stderr=True), transient=True) as bar:
        yield bar


def amount_in_words(done: float, total: float | None, elapsed: float | None) -> str:
    """Return "42 of 200, 9 s left"; of a stage of unknown length how long it has taken."""
    if total is None:
        return duration_in_words(elapsed) if elapsed and elapsed >= 1 else ""
    left = elapsed / done * (total - done) if elapsed and done else 0.0
    rest = f", {duration_in_words(left)} left" if left >= 1 else ""
    return f"{done:g} of {total:g}{rest}"


def duration_in_words(seconds: float) -> str:
    """Return "0.4 s", "12 s", "3 min 5 s" or "2 h 10 min"."""
    if seconds < 9.95:
        return f"{seconds:.0f} s" if seconds >= 0.95 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def describe_cohort(
    result: CohortResult,
    next_step: str = "when all parts have ended: the same command with --gather instead of --part",
) -> Iterator[str]:
    """Yield how many cases are done, which failed, and where the table and the page are."""
    done = result.cases - len(result.failed)
    before = f", {result.skipped} of them before" if result.skipped else ""
    yield f"{done} of {result.cases} cases are done{before}"
    failed = list(result.failed.items())
    for name, error in failed[:_MOST_NAMED]:
        yield f"  failed: {name}: {in_options(error, COHORT_OPTIONS)}"
    if len(failed) > _MOST_NAMED:
        yield f"  and {len(failed) - _MOST_NAMED} more"
    if result.files:
        yield f"table: {result.files['csv']}"
        yield f"page: {result.files['html']}"
    else:
        yield next_step


def describe_run(finished: Run, seconds: float) -> Iterator[str]:
    """Yield the answer of the report, how long it took, where everything is and what comes next."""
    summary, folder = finished.summary, finished.folder
    yield f"\n{summary['answer']}\n"
    yield f"wrote {len(finished.files)} files to {folder} in {duration_in_words(seconds)}"
    yield f"report: {finished.files['report']}"
    yield f"look at it and correct it: perturb-mpm view {folder}"
    if summary["intervals"]["rest_on"] != "learned":
        yield "learn intervals from your own labelled cases: perturb-mpm tune --help"
