#!/usr/bin/env python3
"""comments.py [PATH...]: comments and docstrings that open with Of, What, Whether, Whose, Which or
Behind and ask no question, in tracked C++, Python, Rust, CMake and shell. A comment begins with its
subject."""

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".c", ".def", ".py", ".rs", ".cmake", ".sh"}
REFUSED = re.compile(r"(of|what|whether|whose|which|behind)\b", re.IGNORECASE)
# C++ and Rust: a comment, or a text in which `//` opens none.
CODE = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?\*/)"
    r"|b?R\"(\w*)\(.*?\)\2\"|b?r(#+)\".*?\"\3|\"(?:\\.|[^\"\\])*\""
    r"|(?<![0-9A-Fa-f])'(?:\\.[^'\n]*|[^'\\\n])'",
    re.DOTALL,
)
# CMake and shell: `#` opens a comment at a line's beginning or behind a space.
SHELL = re.compile(
    r"(?:(?<=\s)|^)(?P<comment>#[^\n]*)|\"(?:\\.|[^\"\\])*\"|'[^'\n]*'", re.DOTALL | re.MULTILINE
)


class Comment(NamedTuple):
    line: int
    text: str


def pieces(path, source):
    """(line, column, whether code stands before it, text) of each comment, a line at a time."""
    if path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        for kind, text, (line, column), _, all_of_it in tokens:
            if kind == tokenize.COMMENT:
                yield line, column, bool(all_of_it[:column].strip()), text.lstrip("#!: ")
        return
    code = CODE if path.suffix not in {".cmake", ".txt", ".sh"} else SHELL
    for match in code.finditer(source):
        if match["comment"]:
            start = match.start("comment")
            line_start = source.rfind("\n", 0, start) + 1
            line, column = source.count("\n", 0, start) + 1, start - line_start
            follows = bool(source[line_start:start].strip())
            text = re.sub(r"\n\s*\**", " ", match["comment"].removesuffix("*/"))
            yield line, column, follows, text.lstrip("/#!* <")


def docstrings(source):
    for node in ast.walk(ast.parse(source)):
        has_one = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if has_one and (text := ast.get_docstring(node)):
            yield Comment(node.body[0].lineno, text)


def comments(path, source):
    """The comments of one file: lines that follow each other at one column are one."""
    found, last = [], None
    for line, column, follows, text in pieces(path, source):
        if not follows and last == (line - 1, column) and found:
            found[-1] = Comment(found[-1].line, f"{found[-1].text} {text}")
        else:
            found.append(Comment(line, text))
        last = (line, column)
    return found + (list(docstrings(source)) if path.suffix == ".py" else [])


def asks(text):
    """True if its first sentence is a question."""
    return re.split(r"(?<=[.?!])\s", text.strip(), maxsplit=1)[0].endswith("?")


def refused(path, source):
    """The comments that open with one of the words."""
    return [c for c in comments(path, source) if REFUSED.match(c.text) and not asks(c.text)]


def sources(root, *paths):
    """The tracked files that may have comments."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths]
    names = subprocess.check_output(command, cwd=root, text=True).splitlines()
    for path in sorted({Path(name) for name in names}):
        is_one = path.name == "CMakeLists.txt" or path.suffix in SUFFIXES
        if is_one and (root / path).is_file():
            yield path


def main(arguments):
    count = 0
    for path in sources(ROOT, *arguments):
        for comment in refused(path, (ROOT / path).read_text()):
            print(f"{path}:{comment.line}: {comment.text.splitlines()[0][:150]}")
            count += 1
    return bool(count)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
