"""The folder that a figure's command writes to, and the options that name it and what goes into it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import click

from pagegram_io.commands.options import NAMES, grouped

folder_options = grouped(
    [
        click.option(
            "-o",
            "--output",
            "folder",
            type=click.Path(),
            default="figures",
            show_default=True,
            metavar="DIR",
            help="Folder for the figure and the records behind it. [e.g. figures]",
        ),
        click.option(
            "--formats",
            type=NAMES,
            default="png,svg,pdf",
            show_default=True,
            metavar="LIST",
            help="File formats. [e.g. png,pdf]",
        ),
    ]
)


def picture_paths(folder: str, name: str, formats: tuple[str, ...]) -> list[str]:
    """A path for each format, each once. ValueError for a format that is not drawn."""
    from pagegram_io.figures import check_suffix

    paths = [os.path.join(folder, f"{name}.{suffix}") for suffix in dict.fromkeys(formats)]
    for path in paths:
        check_suffix(path)
    return paths


@contextlib.contextmanager
def new_folder(folder: str) -> Iterator[None]:
    """The folder is there while the block runs; one that was made for it goes if the block fails with nothing in it."""
    made = not os.path.isdir(folder)
    os.makedirs(folder, exist_ok=True)
    try:
        yield
    except BaseException:
        if made and not os.listdir(folder):
            os.rmdir(folder)
        raise
