#!/usr/bin/env python3
"""sentences.py PAGE...: the sentences of Markdown pages that have more than 35 words. A cell of
a table is a paragraph. Blocks of code and comments do not count; a span of code is one word."""

import re
import sys
from pathlib import Path

LONGEST = 35
PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )")


def prose(text):
    """The page without what is no prose, a link as its text and a span of code as one word."""
    text = re.sub(r"^(```|~~~).*?^\1$|<!--.*?-->|^#.*?$", "\n", text, flags=re.M | re.S)
    text = re.sub(r"^ +(```).*?^ +\1$", "\n", text, flags=re.M | re.S)
    text = re.sub(r"``.*?``|`[^`]*`", "CODE", text, flags=re.S)
    text = re.sub(r"^\s*\|.*?$", lambda row: row[0].replace("|", "\n\n"), text, flags=re.M)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)


def sentences(text):
    for paragraph in PARAGRAPH.split(prose(text)):
        yield from re.split(r"(?<=[.?!])[*)\"']*\s+", " ".join(paragraph.split()))


def too_long(text):
    """(number of words, sentence), the longest first."""
    counted = [(len(re.findall(r"\S*\w\S*", s)), s) for s in sentences(text)]
    return sorted((c for c in counted if c[0] > LONGEST), reverse=True)


def main(pages):
    found = [(page, *entry) for page in pages for entry in too_long(Path(page).read_text())]
    for page, count, sentence in found:
        print(f"{page}: {count} words: {sentence}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
