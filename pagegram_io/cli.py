"""The command line: arguments in, results out. Commands live in ``commands/``, one file each, loaded when used."""

from __future__ import annotations

import errno
import importlib
import io
import os
import signal
import sys
from typing import Any

import click

# Name -> first line of help, so that --help need not import every command.
COMMANDS = {
    "simulate": "Flash reads per token of each table layout behind an LRU page cache.",
    "figure1": "Draw what tables of equal size are worth to a model and cost to read; --train makes the runs.",
    "figure4": "Draw reads per token against cache size, for several table sizes.",
    "models": "Deployed tables: what is known of each, how it was verified, and what was not.",
    "tokens": "Write texts as a token stream of a model's own ids.",
    "trace": "Write the pages, rows or bytes that a token stream touches.",
    "layout": "What a table takes up: rows, units, pages, bytes, slack.",
    "nvme": "What a device delivers under the reads of a table, at a held depth.",
    "plan": "Will a table on a drive keep up: go, no go or not known, and why.",
    "mkfile": "A dense file the size of a table, for nvme to read.",
    "pack": "Pack a trained model's table into a file to be read from flash.",
    "repack": "A deployed model's table, from its checkpoint, as a table file.",
    "inspect": "What a file holds: layout, pages, checks, sizes.",
    "verify": "Read every page of a table file and name the damaged ones.",
    "doctor": "What this machine can do, and the cure for what it cannot.",
    "train": "Train a small language model with an n-gram table, or without.",
    "eval": "Held-out loss of a checkpoint, its table in RAM or on flash.",
    "collisions": "Which n-grams share rows: theory beside measurement.",
}

EPILOG = """
Sizes: 512, 4KiB, 1GiB are powers of two; 1GB is 10^9 bytes; 20B is 20 billion parameters.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 not supported on this machine, 130 interrupted.
"""


class LazyGroup(click.Group):
    """A group whose commands are imported only when they run, which keeps --help fast."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"pagegram_io.commands.{name}").command
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _print_version(context: click.Context, option: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        import importlib.metadata

        click.echo(f"pagegram-io {importlib.metadata.version('pagegram-io')}")
        context.exit()


@click.group(
    cls=LazyGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def group() -> None:
    """How many flash reads does a token of a language model with an n-gram table cost?

    Begin with:  pagegram-io simulate --table 20B --cache 1GiB
    """


def _say(text: str) -> None:
    print("pagegram-io: " + " ".join(text.split()), file=sys.stderr)


def _sentence(error: OSError) -> str:
    if error.filename is None or error.strerror is None:
        return error.strerror or str(error)
    cure = {
        errno.ENOENT: "there is no such file or folder",
        errno.EACCES: "permission denied; check its owner and mode",
        errno.EISDIR: "is a folder; name a file",
        errno.ENOTDIR: "a part of this path is not a folder",
        errno.ENOSPC: "the disk is full; this file was not written",
        errno.EROFS: "this file system is read-only; choose another folder",
    }
    code = error.errno or 0
    # A sentence of our own says more than the system's words, and is kept.
    text = cure.get(code, error.strerror) if error.strerror == os.strerror(code) else error.strerror
    return f"{os.fspath(error.filename) or 'an empty name'}: {text}"


def main(arguments: list[str] | None = None) -> None:
    """Run a command; every mistake becomes one line on stderr and an exit status, never a traceback."""
    try:
        status = run(arguments)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done: a traceback is all that it could still cause
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)


def run(arguments: list[str] | None = None) -> int:
    """As ``main``, returning the exit status."""
    from pagegram_io.errors import FormatError

    # A stream that the caller closed is None in Python; what is written to it goes nowhere.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that this terminal cannot show is no failure
    try:
        # Not group.main: it answers Ctrl-C itself, and would lose how far the work had got.
        with group.make_context("pagegram-io", list(sys.argv[1:] if arguments is None else arguments)) as context:
            status: Any = group.invoke(context)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "")
        return 2
    except click.ClickException as error:
        hint = f" (see: {error.ctx.command_path} --help)" if isinstance(error, click.UsageError) and error.ctx else ""
        _say(error.format_message() + hint)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as interruption:
        _say(str(interruption) or "interrupted")
        return 130
    except BrokenPipeError:
        # The reader of our output went away, as `head` does; nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except FormatError as error:
        _say(str(error))
        return 1
    except OSError as error:
        _say(_sentence(error))
        return 3 if error.errno in (errno.ENOTSUP, errno.ENOSYS) else 1
    except MemoryError as error:
        _say(str(error) or "out of memory; give a smaller table or --limit")
        return 1
    except ValueError as error:
        _say(str(error))
        return 2


if __name__ == "__main__":
    main()
