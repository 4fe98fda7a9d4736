"""Comments begin with their subject; pages for users have short sentences and plain words."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import comments  # noqa: E402
import sentences  # noqa: E402

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


PAGES = (
    "README.md", "docs/training.md", "docs/grpo.md", "docs/operating.md", "docs/tinker.md",
)  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_a_page_for_users_has_no_sentence_above_35_words_and_things_do_not_tell(page):
    text = (ROOT / page).read_text()
    assert not sentences.too_long(text)
    words = re.findall(r"\b(?:tells?|told|alone|upstream)\b", sentences.prose(text), re.IGNORECASE)
    assert not words, "reports, prints, returns or states; only; ModelScope's Twinkle"


def test_the_measure_of_sentences_leaves_out_code_and_comments_and_reads_cells():
    long = " ".join(["word"] * 36)
    page = f"# {long}.\n\n```sh\n{long}.\n```\n<!-- {long}. -->\n`{long}`.\n"
    assert not sentences.too_long(page)
    assert len(sentences.too_long(f"| short | {long} |\n| - | - |\n| {long} | short |\n")) == 2
    listed = f"- {long[:-25]}\n- {long[:-25]}\n\n{long[:-25]}: see [a page](x.md)."
    assert not sentences.too_long(listed)
    assert sentences.too_long(f"Short. {long}, `code`.\nShort.") == [(37, f"{long}, CODE.")]
    assert [count for count, _ in sentences.too_long(f"{long}.\n\n- a [{long}](x.md)")] == [37, 36]


def test_operating_begins_with_a_first_day_on_one_screen():
    first, *_ = (ROOT / "docs/operating.md").read_text().partition("\n## Running\n")
    assert len(first.splitlines()) <= 60
    commands = re.findall(r"^(?:twinkle (?:keys )?)?(\w+)\b", first, re.MULTILINE)
    for word in ("serve", "create", "curl", "backup", "restore"):
        assert word in commands
    assert "upgrade" in first
