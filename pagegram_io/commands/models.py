"""``pagegram-io models``: the deployed tables, what was verified of each and how, and what was not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pagegram_io.commands.options import print_records

if TYPE_CHECKING:
    from pagegram_io.deployed import Family


EPILOG = """
Examples:

\b
  pagegram-io models
  pagegram-io models qwen3.8-flash-next
  pagegram-io models --json
"""


@click.command("models", epilog=EPILOG)
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each model, one a line.")
def command(names: tuple[str, ...], as_json: bool) -> None:
    """Deployed tables that --model knows: size, where the facts come from, what was verified and what was not."""
    from pagegram_io.deployed import FAMILIES, NOT_FROM_TOKENS, family_of

    families = [family_of(name) for name in names] or list(FAMILIES.values())
    if as_json:
        print_records([facts(family) for family in families])
        return
    click.echo("\n\n".join(describe(family) for family in families))
    if not names:
        refused = "; ".join(f"{name}: {why}" for name, why in NOT_FROM_TOKENS.items())
        how = "by a run's row numbers (simulate --rows FILE --row-bytes N)"
        click.echo(f"\nNot addressed by tokens, but {how}: {refused}.")


def facts(family: Family) -> dict[str, Any]:
    """A model as one flat record."""
    from pagegram_io.records import SCHEMA, provenance

    first = family.formats[0]
    return {
        "kind": "model",
        "schema": SCHEMA,
        "version": provenance()["version"],
        "model": family.name,
        "title": family.title,
        "rows": family.row_count,
        "rows_per_token": len(family.addresses),
        "orders": ",".join(map(str, family.orders)),
        "layers": ",".join(map(str, family.layers)),
        "row_width": family.width,
        "row_format": first.name,
        "row_bytes": sum(first.part_bytes),
        "table_bytes": family.row_count * sum(first.part_bytes),
        "row_formats": ",".join(form.name for form in family.formats),
        "vocabulary": family.vocabulary,
        "tokenizer": family.tokenizer,
        "stream": family.stream,
        "source": family.source,
        "verified": family.verified,
        "unverified": family.unverified,
    }


def describe(family: Family) -> str:
    """A model as lines for a person."""
    first = family.formats[0]
    gigabytes = family.row_count * sum(first.part_bytes) / 1e9
    where = f", for layers {' and '.join(map(str, family.layers))}" if len(family.layers) > 1 else ""
    form = f"{first.name}, {' + '.join(map(str, first.part_bytes))}"
    others = ", ".join(f"{form.name} ({' + '.join(map(str, form.part_bytes))} B)" for form in family.formats[1:])
    stream = f"shipped as {family.stream}" if family.stream else "none shipped, another stands in"
    lines = [
        f"{family.name}: {family.title}",
        f"  table       {family.row_count:,} rows of {family.width:,} values; {gigabytes:.1f} GB as {form} B",
        f"  lookup      {len(family.addresses)} rows a token, orders {', '.join(map(str, family.orders))}{where}",
        *([f"  formats     also {others}"] if others else []),
        f"  ids         {family.vocabulary:,}, by {family.tokenizer}",
        f"  text        {stream}",
        f"  source      {family.source}",
        f"  verified    {family.verified}",
        f"  unverified  {family.unverified}",
    ]
    return "\n".join(lines)
