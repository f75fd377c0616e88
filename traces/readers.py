"""Readers: the bytes of one file -> the texts of its documents. Used by build.py.

Each is read just far enough that the text looks like what a person reads. Nothing here knows about
packages or tokens. A broken catalogue or JSON file is a ValueError or a struct.error.
"""

from __future__ import annotations

import html.parser
import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator

SECTION_BYTES = 4_000  # entries and records are gathered into documents of about this size (UTF-8)
MESSAGES_PER_DOCUMENT = 120  # messages of a translation catalogue in one document
LOCALE = re.compile(r"(?:^|[/.])(de|en|ja|ru|zh)(?:[-_](?:[A-Za-z]{2}|Hans|Hant))?(?=[/.]|$)")
PHONETICS = re.compile(r" ?/[^/\n]*[ˈˌəɪʊɛɔː][^/\n]*/")  # FreeDict's are made by a machine


def words(text: str) -> frozenset[str]:
    """The words of a text: names of tags or macros, without a quote around each."""
    return frozenset(text.split())


def decode(data: bytes) -> str:
    """UTF-8, or else Latin-1: all that is left in these packages of the older encodings."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def read_text(data: bytes) -> list[str]:
    """Code, reStructuredText, POD: as it stands."""
    return [decode(data)]


def gathered(items: Iterable[str], separator: str, may_begin: Callable[[str], bool]) -> list[str]:
    """Join items into documents of about SECTION_BYTES; one begins where `may_begin` allows it."""
    documents: list[list[str]] = [[]]
    size = 0
    for item in items:
        if size >= SECTION_BYTES and may_begin(item):
            documents.append([])
            size = 0
        documents[-1].append(item)
        size += len(item.encode(errors="replace")) + len(separator)
    return [separator.join(document) for document in documents]


def read_sections(data: bytes) -> list[str]:
    """A dictionary (dictd format): sections of whole entries, which begin in the first column."""
    text = PHONETICS.sub("", decode(data))
    return gathered(text.split("\n"), "\n", lambda line: line[:1].strip() != "")


def read_metamath(data: bytes) -> list[str]:
    """Metamath, without the packed proof steps: base-20 digits that are no text in any sense."""
    text = re.sub(r"(\$=\s*\([^()]*\))[A-Z\s?]+\$\.", r"\1 $.", decode(data))
    return gathered(text.split("\n\n"), "\n\n", lambda statement: True)


def read_json(data: bytes) -> list[str]:
    """A list or an object of records: their strings that look like text (a space, or not ASCII)."""

    def strings(value: object) -> Iterator[str]:
        if isinstance(value, str):
            if " " in value.strip() or not value.isascii():
                yield value
        elif isinstance(value, dict):
            yield from strings(list(value.values()))
        elif isinstance(value, list):
            for item in value:
                yield from strings(item)

    content = json.loads(data)
    records = list(content.values()) if isinstance(content, dict) else content
    texts = ["\n".join(strings(record)) for record in records]
    return gathered(filter(None, texts), "\n\n", lambda text: True)


def read_mo(data: bytes) -> list[str]:
    """A gettext catalogue's translations; its tables of (length, offset) are in the gettext manual."""
    order = "<" if data[:4] == b"\xde\x12\x04\x95" else ">"

    def message(table: int, index: int) -> str:
        length, offset = struct.unpack_from(order + "2I", data, table + 8 * index)
        # An original is "context \4 singular \0 plural"; the singular alone is read.
        text = data[offset : offset + length].split(b"\4")[-1].split(b"\0")[0]
        return text.decode("utf-8", "replace")

    count, originals, translations = struct.unpack_from(order + "3I", data, 8)
    pairs = ((message(originals, index), message(translations, index)) for index in range(count))
    # The empty original is the catalogue's header; an equal translation was left untranslated.
    texts = [translation for original, translation in pairs if original not in ("", translation)]
    starts = range(0, len(texts), MESSAGES_PER_DOCUMENT)
    return ["\n".join(texts[start : start + MESSAGES_PER_DOCUMENT]) for start in starts]


# ---- HTML -------------------------------------------------------------------------------------


class HtmlText(html.parser.HTMLParser):
    """A page's text: line breaks at blocks, and nothing of menus, scripts and page headers."""

    BLOCKS = words("p div section article h1 h2 h3 h4 h5 h6 li ul ol dl dt dd table tr pre blockquote br hr")
    UNREAD = words("head script style nav header footer form svg button iframe noscript")
    UNREAD_CLASS = re.compile(
        r"\b(nav\w*|toc|sidebar|sphinxsidebar|related|headerlink|breadcrumbs?|menu|header|footer|docnav)\b"
    )
    NEVER_CLOSED = words("br hr img input link meta col area base wbr source")

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self.unread_tag = ""  # the element we are in and leave out
        self.unread_depth = 0
        self.literal_depth = 0  # in <pre>, white space is text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        css_class = dict(attrs).get("class") or ""
        if self.unread_tag:
            self.unread_depth += tag == self.unread_tag
        elif tag in self.UNREAD or (tag not in self.NEVER_CLOSED and self.UNREAD_CLASS.search(css_class)):
            self.unread_tag, self.unread_depth = tag, 1
        elif tag in self.BLOCKS:
            self.pieces.append("\n")
            self.literal_depth += tag == "pre"
        elif tag in ("td", "th"):
            self.pieces.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if self.unread_tag:
            # Only tags of the same name are counted: real pages leave others open.
            self.unread_depth -= tag == self.unread_tag
            if self.unread_depth == 0:
                self.unread_tag = ""
        elif tag in self.BLOCKS:
            self.pieces.append("\n")
            self.literal_depth = max(0, self.literal_depth - (tag == "pre"))

    def handle_data(self, data: str) -> None:
        if not self.unread_tag:
            self.pieces.append(data if self.literal_depth else re.sub(r"\s+", " ", data))


def read_html(data: bytes) -> list[str]:
    """One document a page."""
    page = HtmlText()
    page.feed(decode(data))
    page.close()
    text = "".join(page.pieces).replace("\u00b6", "")  # the pilcrow of Sphinx's heading links
    return [re.sub(r"[ \t\u00a0]*\n(?: (?! ))?", "\n", text)]


# ---- man pages --------------------------------------------------------------------------------

# Named characters: two letters, then what they stand for.
ROFF_NAMES = (
    "bu• aq' dq\" lq“ rq” oq‘ cq’ em— en– hy- co© rg® tm™ rs\\ ti~ ha^ mu× +-± de° sc§ ->→ <-← <=≤ >=≥ "
    "ga` at@ sh# ba| lB[ rB] lC{ rC} la< ra> Fo« Fc» Bq„ ssß :aä :oö :uü"
)
ROFF_CHARACTERS = {pair[:2]: pair[2:] for pair in words(ROFF_NAMES)}
ROFF_ESCAPE = re.compile(
    r"""\\(?: \((?P<two>..) | \[(?P<long>[^\]]*)\]              # named characters
        | [fFkmMgn*](?:\[[^\]]*\]|\(..|.) | s[-+]?\d+           # fonts, registers, sizes
        | [hvwlLoDX]'[^']*' | ".*                               # movements, comments
        | (?P<one>.) | $ )""",
    re.VERBOSE,
)
ROFF_ONE = {
    "e": "\\",
    "\\": "\\",
    "~": " ",
    "0": " ",
    " ": " ",
    "-": "-",
    "'": "'",
    "`": "`",
    ".": ".",
}
MACRO = re.compile(r"[.']\s*([A-Za-z]\w{0,2})(?!\w)\s*(.*)")
HEADINGS = words("TH SH SS Sh Ss")
BREAKS = words("PP P LP Pp sp TP TQ HP RS RE br IP It nf EX Bd fi EE Ed TS TE")
ALTERNATE_FONTS = words("BR BI IR IB RB RI")  # .BR ls (1)  is  ls(1)
UNREAD_MACROS = words("ad na hy nh ne ta so in ti ft ps if ie el ds nr rm tr als UE ME Dd Dt Os Bl El Bf Ef")
# In the mdoc dialect of man pages, macros also stand amid a line of another.
MDOC_MACROS = words(
    "Ad An Ao Ap Aq Ar Bo Bq Bro Brc Brq Bx Cd Cm D1 Dl Dq Dv Em Er Ev Fa Fl Fn Fr Ft Fx Ic It In Li Lk "
    "Ms Mt Nd Nm No Ns Nx Oc Oo Op Ot Ox Pa Pf Po Pq Ql Qq Sq Sx Sy Ta Tn Ux Va Vt Xc Xo Xr"
)
TABLE_FORMAT = re.compile(r"[lrcnasbiwtxe|. \d()_=,]*[.;]?", re.IGNORECASE)
WIDE = re.compile(r"[\u3000-\u9fff\uff00-\uffef]")  # Chinese and Japanese: no space at a line's end


def plain_roff(text: str) -> str:
    """Put the characters that roff's escapes stand for in their places."""

    def character(escape: re.Match[str]) -> str:
        name = escape["two"] or escape["long"]
        if name is None:
            return ROFF_ONE.get(escape["one"] or "", "")
        code = re.fullmatch(r"u([0-9A-F]{4,5})", name)
        return chr(int(code[1], 16)) if code else ROFF_CHARACTERS.get(name, "")

    return ROFF_ESCAPE.sub(character, text)


def macro_text(macro: str, rest: str) -> str:
    """The text on a macro's line."""
    arguments = [argument.strip('"') for argument in re.findall(r'"[^"]*"?|\S+', rest)]
    if macro == "TH":
        return plain_roff("{}({})".format(*arguments) if len(arguments) > 1 else rest)
    if macro == "IP":  # .IP label indent
        return plain_roff("".join(arguments[:1]))
    if macro in ALTERNATE_FONTS:
        return plain_roff("".join(arguments))
    if macro in MDOC_MACROS:
        kept = [word for word in [macro, *arguments] if word == "Fl" or word not in MDOC_MACROS]
        text = re.sub(r"\bFl ?", "-", " ".join(kept))  # .Fl a Ar file  is  -a file
        return plain_roff(re.sub(r" (?=[.,:;)](?: |$))", "", text))
    return plain_roff(" ".join(arguments))


class ManPage:
    """Takes a page's lines one by one; `lines` is the text so far, `paragraph` what is being filled."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.paragraph = ""
        self.literal = False  # lines are kept as they are
        self.table = False
        self.definition = False  # of a macro (.de) or a comment (.ig), up to ".."

    def take(self, line: str) -> None:
        macro = MACRO.match(line)
        if self.definition:
            self.definition = not line.startswith("..")
        elif macro:
            self.take_macro(macro[1], macro[2])
        elif line[:1] in (".", "'") or (self.table and (TABLE_FORMAT.fullmatch(line) or "tab(" in line)):
            pass  # a comment, or how a table is set
        elif self.table:
            self.lines.append(plain_roff(re.sub("T[{}]", "", line).replace("\t", " | ")))
        else:
            self.add(plain_roff(line))

    def take_macro(self, macro: str, rest: str) -> None:
        if macro in HEADINGS:
            self.end_paragraph()
            self.lines.append(macro_text(macro, rest))
        elif macro in BREAKS:
            self.end_paragraph()
            self.table = macro == "TS" or (self.table and macro != "TE")
            self.literal = macro in ("nf", "EX", "Bd") or (self.literal and macro not in ("fi", "EE", "Ed"))
            if macro in ("IP", "It"):
                self.add(macro_text(macro, rest))
        elif macro in ("de", "ig", "am"):
            self.definition = True
        elif macro not in UNREAD_MACROS:
            self.add(macro_text(macro, rest))

    def add(self, text: str) -> None:
        if self.literal:
            self.lines.append(text)
        elif not text.strip():
            self.end_paragraph()
        else:
            joint = " " if self.paragraph else ""
            if WIDE.match(self.paragraph[-1:]) and WIDE.match(text.strip()):
                joint = ""
            self.paragraph += joint + text.strip()

    def end_paragraph(self) -> None:
        self.lines += [self.paragraph, ""] if self.paragraph else []
        self.paragraph = ""


def read_man(data: bytes) -> list[str]:
    """One document a page; a page that only includes another (.so) has no text of its own."""
    page = ManPage()
    for line in decode(data).split("\n"):
        page.take(line)
    page.end_paragraph()
    return ["\n".join(page.lines)]


# ---- languages --------------------------------------------------------------------------------


def language_of_path(path: str) -> str | None:
    """The language that a part of the path names: html/de-DE/..., zh_CN/LC_MESSAGES, page.ru.html."""
    match = LOCALE.search(path)
    return match[1] if match else None


def is_written_in(language: str, text: str) -> bool:
    """Whether a text is in its language at all: translated packages hold untranslated pages."""
    scripts = {
        "zh": "[\u4e00-\u9fff]",
        "ja": "[\u3040-\u30ff\u4e00-\u9fff]",
        "ru": "[\u0400-\u04ff]",
    }
    start = text[:20_000]
    if language in scripts:
        return len(re.findall(scripts[language], start)) > 0.05 * len(start)
    if language == "de":
        german = re.findall(r"\b(?:der|die|das|und|nicht|ist|ein|eine|mit|für|den|zu)\b", start, re.IGNORECASE)
        english = re.findall(r"\b(?:the|of|and|to|is|in|for|that|with|be)\b", start, re.IGNORECASE)
        return len(german) >= len(english)
    return True


READERS: dict[str, Callable[[bytes], list[str]]] = {
    "text": read_text,
    "sections": read_sections,
    "metamath": read_metamath,
    "json": read_json,
    "mo": read_mo,
    "html": read_html,
    "man": read_man,
}
# These cut one file into entries that do not hang together: each section counts as a file of its own,
# else a whole dictionary would land on one side of the split.
SECTIONED = frozenset(["sections", "metamath", "json"])
