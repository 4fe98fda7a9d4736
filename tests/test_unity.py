"""Files of a folder are compiled together (cmake/folder.cmake): their own names differ."""

import json
import re
import shlex
import subprocess
from collections import defaultdict
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# The code is formatted: what stands at a namespace's level begins in the first column.
NAMESPACE = re.compile(r"(?:inline )?namespace(?: ([\w:]+))? \{$")
TYPE = re.compile(r"(?:struct|class|enum class|enum) (\w+)(?: final)?(?= :| \{|$)")
OTHER = re.compile(r"[^=({]*?\b(\w+) *[(=\[{;]")
CONSTANT = re.compile(r"[ ,](k[A-Z]\w*)(?= = |\{|\[)")
NO_NAME = (
    "using namespace",
    "namespace ",
    "TEST",
    "TORCH_",
    "INSTANTIATE",
    "extern",
    "static_assert",
)
PARAMETER = re.compile(r"(?<=[\w&*>]) +\w+$")


def without_brackets(text):
    """Without what stands in <>, the innermost first."""
    shorter = re.sub(r"<[^<>]*>", "", text)
    return shorter if shorter == text else without_brackets(shorter)


def parameters(text):
    """The types of a function's parameters; a guess that takes too many functions for alike."""
    inside = re.sub(r"\{[^{}]*\}|\([^()]*\)", "", text.partition("(")[2]).partition(")")[0]
    types = (part.partition("=")[0].strip() for part in re.split(r",(?![^<]*>)", inside))
    return tuple(PARAMETER.sub("", kind) for kind in types)


def declared(text):
    """[(name, its like)] of a declaration in a namespace. Like is what no other file may have the
    same of (a function's parameters) or another of (the text of a `using A = B`), else None."""
    if found := re.match(r"using (\w+) =", text):
        return [(found[1], text)]
    if found := TYPE.match(text):
        return [(found[1], None)]
    if text.startswith(("using ", "struct ", "class ", "enum ")) and "(" not in text:
        return []  # declared elsewhere
    plain = without_brackets(re.sub(r'R?"(?:[^"\\]|\\.)*"', "", text))
    found = OTHER.match(plain)
    if not found or plain[: found.start(1)].endswith(("::", "operator")):
        return []
    if plain[found.end(1) :].startswith("("):
        return [(found[1], parameters(text[text.index(found[1] + "(") :]))]
    return [(name, None) for name in {found[1], *CONSTANT.findall(plain)}]


def whole(lines, at):
    """The declaration that begins there: to the end of its parameters, without `template <...>`."""
    text, end = lines[at], at + 1
    while end < len(lines) and (
        (text.startswith("template") and "(" not in text) or text.count("(") > text.count(")")
    ):
        text, end = f"{text} {lines[end].strip()}", end + 1
    return re.sub(r"^template <[^()]*?> (?=\w)", "", text)


def named_in(text):
    """(namespaces, declaration) of each that stands in a namespace; None is an unnamed one."""
    lines, spaces = text.splitlines(), []
    for at, line in enumerate(lines):
        if found := NAMESPACE.match(line):
            spaces.append(found[1])
        elif re.match(r"\}  // namespace", line):
            spaces.pop()
        elif re.match(r"\w", line) and not line.startswith(NO_NAME):
            yield list(spaces), whole(lines, at)


def local_names(text):
    """[(qualified name, its like)] of what no other file may see: unnamed, static, constant."""
    names = []
    for spaces, shown in named_in(text):
        if None in spaces or shown.startswith(("static ", "constexpr ", "const ")):
            within = [space for space in spaces if space]
            names += [("::".join([*within, name]), like) for name, like in declared(shown)]
    return names


def clashes(texts, overloads=False):
    """["name: files"] of what two of {file: text} keep to themselves and can't have together."""
    where = defaultdict(lambda: defaultdict(set))
    for file, text in texts.items():
        for name, like in local_names(text):
            where[name][like].add(file)
    found = []
    for name, by_like in where.items():
        functions = [files for like, files in by_like.items() if isinstance(like, tuple)]
        if overloads and len(functions) == len(by_like):
            files = set().union(*(held for held in functions if len(held) > 1))
        elif len(by_like) == 1 and None not in by_like:
            continue
        else:
            files = set().union(*by_like.values())
        if len(files) > 1:
            found.append(f"{name}: {', '.join(sorted(files))}")
    return found


def hidden(texts, shared):
    """["name: file hides ..."] of the names of headers, {qualified name: its like}, that one of
    {file: text} has for itself while another uses the header's: the nearer name is found first."""
    own = {file: dict(local_names(text)) for file, text in texts.items()}
    found = []
    for file, names in own.items():
        for name, mine in sorted(names.items()):
            space, _, last = name.rpartition("::")
            for far, like in shared.items():
                around, _, other = far.rpartition("::")
                is_around = other == last and f"{space}::".startswith(f"{around}::")
                if not is_around or (isinstance(like, str) and like == mine):
                    continue
                calls = r"[(<]" if isinstance(like, tuple) else r"\b"
                use = re.compile(rf"(?<![\w:.>]){last}{calls}")
                users = [f for f, t in texts.items() if name not in own[f] and use.search(t)]
                if users:
                    found.append(f"{last}: {file} hides {far} from {', '.join(users)}")
    return found


def header_names(headers):
    """{qualified name: its like} of what these texts declare for others."""
    return {
        "::".join([*spaces, name]): like
        for text in headers
        for spaces, shown in named_in(text)
        if None not in spaces
        for name, like in declared(shown)
    }


EMULATION = (
    *("tests/cuda_emulation/*.cpp", "twinkle/*_cuda_test.cpp", "twinkle/kernels/*_cuda.cpp"),
    *(f"twinkle/kernels/cuda/{name}.cpp" for name in ("*_test", "tables", "tensors")),
)


def folders(tracked):
    """{a name: the files that CMake compiles together, in some order}, read from CMakeLists.txt."""
    text = (ROOT / "CMakeLists.txt").read_text()
    alone = [
        f"twinkle/{folder}/{pattern}.cpp"
        for folder, patterns in re.findall(
            r"twinkle_(?:alone|without_torch)\((\w+) ([^)]*)\)", text
        )
        for pattern in patterns.split()
    ]
    of_programs = re.compile(r"/main\.cpp$|/kernels/cuda/|_cuda\.cpp$|_without_torch\.cpp$")
    found = defaultdict(list)
    for path in map(str, tracked("twinkle/*.cpp")):
        name = "/".join(path.split("/")[:2])
        if path.endswith("_test.cpp"):
            found[f"{name} tests"].append(path)
        elif not of_programs.search(path) and not any(fnmatch(path, each) for each in alone):
            found[name].append(path)
    found["python/src"] = list(map(str, tracked("python/src/*.cpp")))
    found["tests/cuda_emulation"] = list(map(str, tracked(*EMULATION)))
    found["tests/fuzz"] = [str(p) for p in tracked("tests/fuzz/*.cpp") if p.parent.name == "fuzz"]
    return found


def test_names_that_a_file_keeps_for_itself_differ_within_a_folder(tracked):
    """So adding a file is enough: those that the alphabet puts it together with don't break it."""
    of = folders(tracked)
    assert len(of["twinkle/model"]) > 8 and len(of["twinkle/engine tests"]) > 8

    def names(*patterns):
        return header_names((ROOT / path).read_text() for path in tracked(*patterns))

    base = {n: like for n, like in names("twinkle/base/*.h").items() if n.count("::") == 1}
    assert {"twinkle::error_of", "twinkle::require"} <= set(base)
    found = []
    for folder, files in of.items():
        texts = {file: (ROOT / file).read_text() for file in files}
        for_tests = (
            names(f"{folder.removesuffix(' tests')}/*_for_test.h") if "tests" in folder else {}
        )
        # Tests call by braces, and hand over functions: which overload it is would be open.
        found += clashes(texts, overloads="test" not in folder) + hidden(texts, base | for_tests)
    assert not found, "\n".join(found)


ONE = """namespace twinkle::a {
namespace {

constexpr int64_t kOne = 1, kTwo[] = {2};
using Names = std::vector<std::string>;

struct Rows {
  int64_t of = 0;
};

template <class T>
std::map<std::string, T> read(char name, const std::vector<T>& values,
                              int64_t count = 2) {
  return {};
}

}  // namespace

static int64_t count() { return 3; }
void Shown::print() { count(); }
int64_t shown(int64_t x) { return x; }

}  // namespace twinkle::a
"""


@pytest.mark.parametrize(
    ("declaration", "name"),
    [
        ('constexpr const char* kOne = R"({})";', "kOne"),
        ("const std::array<int, 2> kTwo{1, 2};", "kTwo"),
        ("class Rows final : public Base {\n};", "Rows"),
        ("enum class Rows { kA };", "Rows"),
        ("using Names = std::set<std::string>;", "Names"),
        ("using Names = std::vector<std::string>;", None),
        (
            "template <class T>\nT read(char a, const std::vector<T>& b, int64_t c) {",
            "read",
        ),
        ("void read(int64_t x) {", None),
        ("int64_t count() {", "count"),
        ("int64_t kept = count();", None),
        ("int64_t shown(int64_t x);", None),
    ],
)
def test_a_name_that_two_files_keep_for_themselves_is_found(declaration, name):
    two = f"namespace twinkle::a {{\nnamespace {{\n\n{declaration}\n\n}}  // namespace\n}}\n"
    expected = [f"twinkle::a::{name}: one.cpp, two.cpp"] if name else []
    assert clashes({"one.cpp": ONE, "two.cpp": two}, overloads=True) == expected


def test_a_function_of_two_tests_is_found_whatever_its_parameters():
    two = "namespace twinkle::a {\nnamespace {\nvoid read(int64_t x) {\n}  // namespace\n"
    assert clashes({"one.cpp": ONE, "two.cpp": two}) == ["twinkle::a::read: one.cpp, two.cpp"]


def test_a_name_of_a_header_that_a_file_hides_from_another_is_found():
    shared = header_names(["namespace twinkle {\n\nstd::string error_of(int run);\nclass Rows {\n"])
    own = "namespace twinkle::a {\nnamespace {\nint error_of(int x) {\nclass Rows {\n"
    calls = "TEST(A, B) { EXPECT_EQ(error_of([] {}), Rows()); }\n"
    found = [
        "Rows: own.cpp hides twinkle::Rows from other.cpp",
        "error_of: own.cpp hides twinkle::error_of from other.cpp",
    ]
    assert hidden({"own.cpp": own, "other.cpp": calls}, shared) == found
    assert hidden({"own.cpp": own, "other.cpp": own + calls}, shared) == []
    qualified = calls.replace("error_of(", "twinkle::error_of(").replace("Rows", "twinkle::Rows")
    assert hidden({"own.cpp": own, "other.cpp": qualified}, shared) == []


@pytest.mark.soak
def test_every_folder_compiles_as_one_unit(tracked, tmp_path):
    """In whatever order: no macro, no using-directive and no overload of one file harms another."""
    commands = ROOT / "build/release/compile_commands.json"
    if not commands.exists():
        pytest.skip("build/release is not configured: make build")
    compiles = {}  # by target: how one of its files is compiled
    for entry in json.loads(commands.read_text()):
        line, _, output = entry["command"].partition(" -o ")
        target = re.match(r"CMakeFiles/(\w+)\.dir", output)[1]
        compiles[target] = shlex.split(re.sub(r"^.*?ccache ", "", line))
    failed = []
    for name, files in folders(tracked).items():
        unit = tmp_path / "unit.cpp"
        unit.write_text("".join(f'#include "{ROOT / file}"\n' for file in files))
        folder = name.removeprefix("twinkle/").removesuffix(" tests")
        programs = {"python/src": "_core", "tests/fuzz": "fuzz"}
        target = {**programs, "tests/cuda_emulation": "cuda_emulation_test"}.get(
            name, f"{folder}_test" if name.endswith(" tests") else f"twinkle_{folder}"
        )
        command = [*compiles[target], "-fsyntax-only", unit]
        result = subprocess.run(command, capture_output=True, text=True, cwd=commands.parent)
        if result.returncode:
            failed.append(f"{name}: {result.stderr[:3000]}")
    assert not failed, "\n".join(failed)
