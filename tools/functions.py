#!/usr/bin/env python3
"""functions.py [PATH...]: lengths and parameter counts of the functions of tracked C++ and Python.

A length is in lines, from the first line of the signature to the closing brace or last statement.
C++ is read by brackets alone, not by a compiler: what opens a brace in a namespace or a class and
has a parameter list is a function; a lambda belongs to the function that it stands in.
"""

import ast
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

LONGEST = 5
# Comments, raw strings, strings, characters, preprocessor lines: blanked, their line ends kept.
NOT_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/|R\"(\w*)\(.*?\)\1\"|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\])+'"
    r"|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*",
    re.DOTALL | re.MULTILINE,
)
OPENS_SCOPE = re.compile(r"\b(namespace|extern|class|struct|union|enum)\b[^()=]*$")
# A member that is initialised with braces, after the constructor's parameters.
BRACED_MEMBER = re.compile(r"\)[^;{}]*[:,]\s*[\w:]+(<[^{}]*>)?\s*$")


@dataclass(frozen=True)
class Function:
    path: str
    line: int
    name: str
    lines: int
    parameters: int

    def __str__(self):
        size = f"{self.lines} lines, {self.parameters} parameters"
        return f"{self.path}:{self.line}: {self.name}: {size}"


def blank(match):
    return re.sub(r"[^\n]", " ", match[0])


def matching(text, start):
    """Where the bracket at `start` is closed."""
    pairs = {"(": ")", "{": "}", "[": "]"}
    depth, opening, closing = 0, text[start], pairs[text[start]]
    for i in range(start, len(text)):
        depth += (text[i] == opening) - (text[i] == closing)
        if depth == 0:
            return i
    raise ValueError(f"a {opening} is never closed")


def count_parameters(inside):
    """Commas that are in no bracket, and one more."""
    if inside.strip() in ("", "void"):
        return 0
    inside = inside.replace("->", "  ").replace(">=", "  ").replace("<=", "  ")
    depth, count = 0, 1
    for character in inside:
        depth += (character in "([{<") - (character in ")]}>")
        count += character == "," and depth == 0
    return count


def parse_cpp(path, source):
    """The functions of one file, in its order."""
    text = NOT_CODE.sub(blank, source)
    found, i, begin = [], 0, 0
    while i < len(text):
        if text[i] in ";}" or (text[i] == ":" and text[begin:i].split()[-1:] in SECTIONS):
            begin = i + 1
        elif text[i] in "([":
            i = matching(text, i)
        elif text[i] == "{":
            head = text[begin:i]
            plain = without_brackets(head)
            if OPENS_SCOPE.search(plain):
                begin = i + 1
            elif "(" not in head or "=" in plain:
                i = matching(text, i)  # a value
            elif BRACED_MEMBER.search(head):
                i = matching(text, i)
            else:
                end = matching(text, i)
                found.append(cpp_function(path, text, begin, end, head))
                begin, i = end + 1, end
        i += 1
    return found


def without_brackets(head):
    """Without template headers, and what is in angle, round and curly brackets."""
    plain, before = head.replace("decltype(auto)", "").replace("operator=", "operator "), None
    while plain != before:
        before = plain
        plain = re.sub(r"<[^<>]*>|\([^()]*\)|\{[^{}]*\}", "", plain)
    return plain


SECTIONS = (["public"], ["private"], ["protected"])


def cpp_function(path, text, begin, end, head):
    begin += len(head) - len(head.lstrip())
    head = re.sub(
        r"^template\s*<.*?>\s*(?=\w)|decltype\(auto\)", blank, head.lstrip(), flags=re.DOTALL
    )
    opening = head.index("(")
    if head[:opening].rstrip().endswith("operator"):  # operator()(...)
        opening = head.index("(", opening + 1)
    name = head[:opening].split()[-1].lstrip("*&")
    inside = head[opening + 1 : matching(head, opening)]
    if name in ("TEST", "TEST_F", "TEST_P"):
        name, inside = f"{name}({inside})", ""
    line = text.count("\n", 0, begin) + 1
    return Function(path, line, name, text.count("\n", begin, end) + 1, count_parameters(inside))


def parse_python(path, source):
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            all_ = node.args
            names = [a.arg for a in [*all_.posonlyargs, *all_.args, *all_.kwonlyargs]]
            names += [a.arg for a in (all_.vararg, all_.kwarg) if a]
            lines = node.end_lineno - node.lineno + 1
            count = len([name for name in names if name not in ("self", "cls")])
            found.append(Function(path, node.lineno, node.name, lines, count))
    return found


def functions(root, paths):
    """Those of the files among `paths`, relative to `root`, that are C++ or Python."""
    found = []
    for path in map(str, paths):
        parse = {".h": parse_cpp, ".cpp": parse_cpp, ".py": parse_python}.get(Path(path).suffix)
        if parse:
            found += parse(path, (Path(root) / path).read_text())
    return found


def main():
    listed = subprocess.run(
        ["git", "ls-files", *sys.argv[1:]], capture_output=True, text=True, check=True
    )
    found = functions(".", listed.stdout.splitlines())
    if not found:
        sys.exit("functions.py: no function found")
    lines = sorted(f.lines for f in found)
    share = {p: lines[int(p / 100 * (len(lines) - 1))] for p in (50, 90, 99, 100)}
    print(f"{len(found)} functions; lines: " + ", ".join(f"p{p} {n}" for p, n in share.items()))
    for key in ("lines", "parameters"):
        print(f"most {key}:")
        for f in sorted(found, key=lambda f: -getattr(f, key))[:LONGEST]:
            print(f"  {f}")


if __name__ == "__main__":
    main()
