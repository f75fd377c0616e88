"""What the programs here share: one line on stderr for whatever a person can put right, and an exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn


class Refusal(Exception):
    """What a person can put right, in one line, with the exit status it leads to."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class Parser(argparse.ArgumentParser):
    """argparse, with one line for a mistake instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        raise Refusal(f"{message} (see --help)", 2)


def make_parser(description: str | None) -> Parser:
    raw = argparse.RawDescriptionHelpFormatter
    return Parser(description=description, formatter_class=raw, allow_abbrev=False)


def token_count(text: str) -> int:
    digits = text.replace(",", "").replace("_", "")
    if not digits.isdecimal() or int(digits) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of tokens of at least 1")
    return int(digits)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def status_of(name: str, work: Callable[[], None], *, stopped: str = "stopped") -> int:
    """Do the work of the program of this name; its exit status, with a line for what went wrong."""
    try:
        work()
    except Refusal as refusal:
        say(f"{name}: {refusal}")
        return refusal.status
    except (OSError, ValueError) as error:
        say(f"{name}: {error}")
        return 1
    except KeyboardInterrupt:
        say(f"{name}: {stopped}")
        return 130
    return 0
