"""How comments begin: with their subject."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import comments  # noqa: E402

LEFT = "tools/comments_left.txt"


def test_no_comment_opens_with_a_riddle_but_in_files_that_are_listed():
    """The list holds only files that still have some, and gets no new ones."""
    found = {}
    for path in comments.sources(ROOT):
        for comment in comments.refused(path, (ROOT / path).read_text()):
            found.setdefault(str(path), f"{path}:{comment.line}: {comment.text[:60]}")
    listed = (ROOT / LEFT).read_text().splitlines()
    assert listed == sorted(set(listed))
    new = [text for path, text in found.items() if path not in set(listed)]
    assert not new, "say the subject first"
    done = [path for path in listed if path not in found]
    assert not done, f"these have none any more: take them out of {LEFT}"


@pytest.mark.parametrize(
    ("name", "source", "lines"),
    [
        ("a.h", "// Of each row.\nint a;  // what it holds\n/* Whether it ends. */\n", [1, 2, 3]),
        ("a.cpp", 'auto a = "// Of";  // Bytes of a row.\nchar c = \'"\';  // Which row\n', [2]),
        ("a.cpp", "// A row has\n// what it needs.\nint a;  // The row,\n        // of T.\n", []),
        ("a.py", '"""What it is."""\n# Whose row\na = "# Of"  # Behind it\n', [1, 2, 3]),
        ("a.rs", "/// Of a text.\nfn a() {}  // what next?\n", [1]),
        ("a.sh", 'echo "# Of"  # Whether it runs\n', [1]),
        ("a.cmake", "# Which of them? The first.\nset(a b)  # Of b.\n# Offers b.\n", [2]),
    ],
)
def test_it_finds_them_in_comments_and_docstrings_and_leaves_questions(name, source, lines):
    assert sorted(c.line for c in comments.refused(Path(name), source)) == lines
