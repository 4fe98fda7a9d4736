"""MathReward and MultiModalAccuracyReward: tables, sympy as another judge, and hostile replies."""

import random

import pytest
from turns import ends, score

from twinkle.reward import MathReward, MultiModalAccuracyReward
from twinkle.reward.equality import equal

SEED = 20261122

EQUAL = [
    (r"\frac{1}{2}", "0.5"), (r"\dfrac12", "1/2"), (r"2\sqrt{3}", r"\sqrt{12}"), ("x = 5", "5"),
    (r"50\%", "50"), (r"90^\circ", "90"), (r"90^{\circ}", "90°"), (r"\$1{,}000", "1000"),
    ("10,000", "10000"), ("(1,2)", r"\left( 1, 2 \right)"), ("2,1", "1, 2"),
    (r"\{1,2\}", "2 and 1"), (r"1\pm 2", "3,-1"), (r"x=\pm 2", "-2, 2"), (r"1,\pm2", "2,-2,1"),
    ("3 1/2", r"3\frac{1}{2}"), ("3.5", r"3\frac12"), (r"5\text{ cm}", "5"),
    ("5 cm", r"5\text{ cm}"), ("10 square units", "10"), (r"12\,\mathrm{m}/\mathrm{s}", "12 m/s"),
    (r"5\text{ apples}", r"5\text{ apple}"), (r"\text{(A)}", "A"), (r"\textbf{(C)}\ ", "(C)"),
    (r"\text{Evelyn}", "evelyn"), ("x^2-1", "(x-1)(x+1)"), ("3x^2y", "3yx^2"),
    (r"\frac{x^2-1}{x-1}", "x+1"), (r"\sin^2 x+\cos^2 x", "1"), (r"\sqrt[3]{-8}", "-2"),
    (r"\log_2 8", "3"), (r"\ln e^2", "2"), (r"|{-3}|", "3"), (r"\binom{5}{2}", "10"),
    ("5!", "120"), (r"6\pi", "6π"), (r"\frac\pi6", "pi/6"), ("(1+i)^2", "2i"), (r"e^{i\pi}", "-1"),
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"), ("x = 2/4 = 1/2", "1/2"), ("2x", "2·x"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1 & \frac42\\3&4\end{pmatrix}"),
    (r"(-\infty,2)\cup(3,\infty)", r"(3,+\infty)\cup (-\infty, 2)"), (r"x\in(1,2)", "(1,2)"),
    ("(x,y)=(1,2)", "(1,2)"), ("x>2", "2<x"), (r"x\geq 2", "x>=2"), ("y=2x+1", "2x+1=y"),
    ("2^{100}", "1267650600228229401496703205376"), ("1e5", r"10^5"), ("12_3", "12_{3}"),
    (r"1.0\times 10^{5}", "100000"), (r"\{\{1,2\},\{3\}\}", r"\{\{3\},\{2,1\}\}"),
    (r"\{3\}", "3"), (r"\{(1,2)\}", "(1,2)"), (r"\emptyset", r"\varnothing"), (r"\[7\]", "7."),
    ("１２", "12"), (r"x_1+x_{2}", "x_2+x_1"), (r"\alpha+\beta", r"\beta+\alpha"), ("1:2", "1 : 2"),
    ("9**9**9", "9^9^9"), (r"f(x)=x+1", "x+1"), ("5", r"\boxed{5}"),
]  # fmt: skip
DIFFERENT = [
    ("5", "6"), ("(1,2)", "(2,1)"), ("(1,2)", "[1,2]"), ("1,2", "1,2,3"), ("1,1,2", "1,2,2"),
    ("1", "x^2+y^2=1"), ("x>2", r"x\ge 2"), ("5 km", "5 m"), ("x", "y"), (r"\sqrt{x^2}", "x"),
    ("9**9**9", "1"), ("10^{10^{10}}", "1"), ("0.333", "1/3"), ("0.33333333", "1/3"),
    ("0.0000001", "0.0000002"), (r"5\text{ apples}", r"5\text{ pears}"), ("1000001", "1000000"),
    ("x=2,y=1", "x=1,y=2"), ("3.14", r"\pi"), ("x+1", "x+2"), ("cat", "act"), ("1/0", "2/0"),
    (r"\frac{1}{0}", r"\infty"), ("(1,2)", "1,2"), ("A", "B"), ("AB", "BA"), ("y=2x", "2x=z"),
    ("12_3", "12_4"), (r"\{\{1,2\},\{3\}\}", "1,2,3"), ("__import__('os')", "1"), ("", "1"),
    (r"\sin^{-1} x", r"\frac{1}{\sin x}"), ("2^{1000000}", "2^{1000001}"), ("5 x", "5"),
    ("-5", "5"), (r"\infty", r"-\infty"), ("1,000", "1"), ("e", "2.718"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_answers_that_say_the_same(one, other):
    assert equal(one, other) and equal(other, one)


@pytest.mark.parametrize(("reply", "truth"), DIFFERENT)
def test_answers_that_do_not(reply, truth):
    assert not equal(reply, truth)


def test_a_reply_may_show_how_it_got_there_but_no_truth_is_read_as_its_right_side():
    assert equal("2+3=5", "5") and not equal("5", "2+x=5")


def rational(rng, depth=3):
    """(a formula in LaTeX, the same for sympy) of x, y and small numbers."""
    kind = rng.choice("nnvv") if depth == 0 else rng.choice("nv+-*/^fr")
    if kind == "n":
        n = str(rng.randint(1, 9))
        return n, n
    if kind == "v":
        return (rng.choice("xy"),) * 2
    a, b = rational(rng, depth - 1), rational(rng, depth - 1)
    if kind == "^":
        n = rng.randint(2, 3)
        return rf"\left({a[0]}\right)^{{{n}}}", f"({a[1]})**{n}"
    if kind in "f/":
        return rf"\frac{{{a[0]}}}{{{b[0]}}}", f"({a[1]})/({b[1]})"
    if kind == "r":
        return rf"\sqrt{{{a[0]}+20}}", f"sqrt({a[1]}+20)"
    sign = r"\cdot " if kind == "*" else kind
    return rf"({a[0]}){sign}({b[0]})", f"({a[1]}){kind}({b[1]})"


def test_formulas_are_judged_as_sympy_judges_them():
    sympy = pytest.importorskip("sympy")
    rng = random.Random(SEED)
    compared = 0
    for case in range(30):
        latex, plain = rational(rng)
        formula = sympy.sympify(plain)
        if formula.has(sympy.zoo, sympy.nan, sympy.oo):
            continue
        rewritten = str(sympy.expand(formula)).replace("**", "^")
        assert equal(latex, rewritten), f"seed {SEED}, case {case}: {latex} {rewritten}"
        for text in (f"{rewritten}+1/1000", f"({rewritten})*(1+x/1000)"):
            expected = sympy.simplify(sympy.sympify(text.replace("^", "**")) - formula) == 0
            assert equal(latex, text) == expected, f"seed {SEED}, case {case}: {latex} {text}"
        compared += 1
    assert compared > 20


@pytest.mark.parametrize(
    ("reply", "truth", "reward"),
    [
        (r"So \boxed{\frac{1}{2}}.", r"... hence $\boxed{\dfrac 12}$.", 1),
        (r"First \boxed{3}, no: \boxed{0.5}", "1/2", 1),
        (r"First \boxed{0.5}, no: \boxed{3}", "1/2", 0),
        (r"\boxed{0.5} and \boxed{3", "1/2", 1),
        ("0.5", r"\boxed{1/2}", 1),
        ("<think>3?</think> 0.5", "1/2", 1),
        ("The answer is 0.5", "1/2", 0),
        (r"\boxed{}", "1/2", 0),
        (r"\boxed{9**9**9}", "1/2", 0),
        (r"\boxed{" + "1+" * 5000 + "1}", "5001", 0),
    ],
)
def test_math_reward_reads_the_last_box(reply, truth, reward):
    assert score(MathReward(), reply, truth, key="solution") == reward
    assert score(MathReward("t"), reply, truth, key="t") == reward


@pytest.mark.parametrize(
    ("reply", "truth", "reward"),
    [
        ("<think>3 or 4</think><answer>4</answer>", "4", 1),
        ("<answer>3</answer><answer> 4.0 </answer>", "4", 1),
        (r"<answer>It is \boxed{4}</answer>", "<answer>4</answer>", 1),
        (r"\boxed{5}<answer>4</answer>", "4", 1),
        (r"\boxed{4}", "4", 1),
        ("4", "4", 1),
        ("<answer>The Red cube.</answer>", "the red  cube", 1),
        ("<answer>yes</answer>", "Yes", 1),
        ("<answer>yes</answer>", "no", 0),
        ("<answer>the cube red</answer>", "the red cube", 0),
        ("<answer></answer>4", "4", 0),
        ("<answer>0.5</answer>", r"\frac12", 1),
    ],
)
def test_multimodal_reward_reads_the_last_answer(reply, truth, reward):
    assert score(MultiModalAccuracyReward(), reply, truth) == reward


HOSTILE = [
    "9**9**9", "9^{9^{9}}", "2^" * 300 + "2", "(" * 500 + "1" + ")" * 500, "{" * 999,
    r"\frac" * 190,
    r"\sqrt" * 199, "|" * 999, "1+" * 499 + "1", "5" + "!" * 900, "300!*" * 200 + "1",
    "-" * 998 + "1",
    "2^4000*" * 140 + "1", r"\binom{300}{150}*" * 50 + "1", "(1/3^{2500}+1/7^{1400})*" * 40 + "1",
    "((x+1/3)^{99}+(y+1/7)^{99})*" * 33 + "1", "1.5^{600}(x+y)^{300}" * 50, "±" * 999, "1±" * 499,
    "±," * 499, r"\text{" * 160, r"\text{a}" * 140, r"\begin{matrix}" * 60, "1 " * 499, "1," * 499,
    "9" * 999, "a " * 499, "x" + " " * 998 + "x", "1" + " " * 998 + "1", "3" + " 1" * 490 + "/2",
    "x_" * 499, "x_{" * 333, "=x" * 499, "<" * 999, "∪" * 999, r"\{" * 499, "sin " * 249,
    r"\sin^" * 199, r"\log_" * 199, "e^" * 499, "x=5," * 249, "(1," * 333, "0^{-1}",
    "(-1)^{" + "9" * 900 + "}", "0.1^{99999}", "9.9e999", "1e" + "9" * 900, "\ud800", "٠١",
    "①", ".",
    "1^{" * 300, r"\\" * 499, r"\left." * 160, "x" * 999, "{,}" * 333, "\x01\x02" * 499,
]  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_every_answer_ends_and_raises_nothing(hostile):
    with ends():
        for truth in ("5", hostile + " ", hostile[::-1], "x+1", "(1,2)"):
            equal(hostile, truth)
            equal(truth, hostile)


def test_drawn_nonsense_ends_raises_nothing_and_equals_no_other():
    rng = random.Random(SEED)
    commands = [r"\frac", r"\sqrt", r"\text{", r"\left(", r"\pi", r"\cup", r"\{", r"\}", r"\sin"]
    alphabet = [
        *commands,
        r"\log_",
        "9^",
        "**",
        "1e9",
        *"0123456789xyzabc(){}[]^_+-*/=,.|!<>± \\$%&~∪∈°",
    ]
    for _ in range(300):
        text = "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 600)))
        with ends():
            assert not equal(text, "123456.789")
            equal("x+1", text)
