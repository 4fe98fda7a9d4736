"""MathReward and MultiModalAccuracyReward: tables, sympy as another judge, and hostile replies."""

import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from turns import ends, score

import twinkle
from twinkle.logger import get_logger
from twinkle.reward import MathReward, MultiModalAccuracyReward, equality
from twinkle.reward.equality import equal

SEED = 20261122
# Judged by math-verify other than a person would: it leaves out units, repetitions in a set and the
# base of a number, reads (1,2) as a set too, rounds to six digits, and knows no roots of -1.
LENIENT = [("5 km", "5 m"), (r"5\text{ apples}", r"5\text{ pears}"), ("1,1,2", "1,2,2"),
           ("12_3", "12_4"), ("(1,2)", "1,2"), ("0.33333333", "1/3")]  # fmt: skip
STRICT = [(r"e^{i\pi}", "-1"), ("(1+i)^2", "2i"), (r"\sqrt[3]{-8}", "-2"),
          (r"\{(1,2)\}", "(1,2)"), (r"\frac\pi6", r"\frac{\pi}{6}"),
          (r"12\,\mathrm{m}/\mathrm{s}", "12 m/s"), (r"\emptyset", r"\varnothing")]  # fmt: skip

EQUAL = [
    (r"\frac{1}{2}", "0.5"), (r"\dfrac12", "1/2"), (r"2\sqrt{3}", r"\sqrt{12}"), ("x = 5", "5"),
    (r"50\%", "50"), (r"90^\circ", "90"), (r"90^{\circ}", "90°"), (r"\$1{,}000", "1000"),
    ("10,000", "10000"), ("(1,2)", r"\left( 1, 2 \right)"), ("2,1", "1, 2"),
    (r"\{1,2\}", "2 and 1"), (r"1\pm 2", "3,-1"), (r"x=\pm 2", "-2, 2"), (r"1,\pm2", "2,-2,1"),
    ("3 1/2", r"3\frac{1}{2}"), ("3.5", r"3\frac12"), (r"5\text{ cm}", "5"),
    ("5 cm", r"5\text{ cm}"), ("10 square units", "10"),
    (r"5\text{ apples}", r"5\text{ apple}"), (r"\text{(A)}", "A"), (r"\textbf{(C)}\ ", "(C)"),
    (r"\text{Evelyn}", "evelyn"), ("x^2-1", "(x-1)(x+1)"), ("3x^2y", "3yx^2"),
    (r"\frac{x^2-1}{x-1}", "x+1"), (r"\sin^2 x+\cos^2 x", "1"),
    (r"\log_2 8", "3"), (r"\ln e^2", "2"), (r"|{-3}|", "3"), (r"\binom{5}{2}", "10"),
    ("5!", "120"), (r"6\pi", "6π"),
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"), ("x = 2/4 = 1/2", "1/2"), ("2x", "2·x"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1 & \frac42\\3&4\end{pmatrix}"),
    (r"(-\infty,2)\cup(3,\infty)", r"(3,+\infty)\cup (-\infty, 2)"), (r"x\in(1,2)", "(1,2)"),
    ("(x,y)=(1,2)", "(1,2)"), ("x>2", "2<x"), (r"x\geq 2", "x>=2"), ("y=2x+1", "2x+1=y"),
    ("2^{100}", "1267650600228229401496703205376"), ("12_3", "12_{3}"),
    (r"1.0\times 10^{5}", "100000"), ("1e5", "100000"), ("1e5", "10^5"), ("x = 2.5E-3", "0.0025"),
    ("-1e+2", "-100"), (r"\{\{1,2\},\{3\}\}", r"\{\{3\},\{2,1\}\}"),
    (r"\{3\}", "3"), (r"\[7\]", "7."),
    ("１２", "12"), (r"x_1+x_{2}", "x_2+x_1"), (r"\alpha+\beta", r"\beta+\alpha"), ("1:2", "1 : 2"),
    ("9**9**9", "9^9^9"), (r"f(x)=x+1", "x+1"), ("5", r"\boxed{5}"),
]  # fmt: skip
DIFFERENT = [
    ("5", "6"), ("(1,2)", "(2,1)"), ("(1,2)", "[1,2]"), ("1,2", "1,2,3"),
    ("1", "x^2+y^2=1"), ("x>2", r"x\ge 2"), ("x", "y"), (r"\sqrt{x^2}", "x"),
    ("9**9**9", "1"), ("10^{10^{10}}", "1"), ("0.333", "1/3"),
    ("0.0000001", "0.0000002"), ("1000001", "1000000"),
    ("x=2,y=1", "x=1,y=2"), ("3.14", r"\pi"), ("x+1", "x+2"), ("cat", "act"), ("1/0", "2/0"),
    (r"\frac{1}{0}", r"\infty"), ("A", "B"), ("AB", "BA"), ("y=2x", "2x=z"),
    (r"\{\{1,2\},\{3\}\}", "1,2,3"), ("__import__('os')", "1"), ("", "1"),
    (r"\sin^{-1} x", r"\frac{1}{\sin x}"), ("2^{1000000}", "2^{1000001}"), ("5 x", "5"),
    ("1e5", "1e6"), ("2e5", "10"), ("2e", "2"),
    ("-5", "5"), (r"\infty", r"-\infty"), ("1,000", "1"), ("e", "2.718"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_answers_that_say_the_same(one, other):
    assert equal(one, other) and equal(other, one)


@pytest.mark.parametrize(("reply", "truth"), DIFFERENT)
def test_answers_that_do_not(reply, truth):
    assert not equal(reply, truth)


def test_a_few_answers_are_judged_as_math_verify_does():
    assert all(equal(*pair) for pair in LENIENT)
    assert not any(equal(*pair) for pair in STRICT)


def test_numbers_that_math_verify_rounds_to_the_same_are_not_equal():
    assert not equal(r"1.6\times 10^{-19}", r"9.1\times 10^{-31}")


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
        expanded = sympy.expand(formula)
        rewritten = sympy.latex(expanded)
        assert equal(latex, rewritten), f"seed {SEED}, case {case}: {latex} {rewritten}"
        for other in (expanded + sympy.Rational(1, 100), expanded * (1 + sympy.Symbol("x") / 100)):
            expected, text = sympy.simplify(other - formula) == 0, sympy.latex(other)
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
    "9**9**9", "2^" * 300 + "2", "(" * 500 + "1" + ")" * 500, r"\frac" * 190, "|" * 999,
    "1+" * 499 + "1", "5" + "!" * 900, "((x+1/3)^{99}+(y+1/7)^{99})*" * 33 + "1", r"\text{" * 160,
    r"\begin{matrix}" * 60, "1," * 499, "9" * 999, "x" + " " * 998 + "x", "x_{" * 333, "=x" * 499,
    "sin " * 249, "(1," * 333, "(-1)^{" + "9" * 900 + "}", "1e" + "9" * 900, "\ud800", "٠١", ".",
    "x" + " " * 10**6 + "x",
]  # fmt: skip


def test_every_answer_ends_and_raises_nothing(monkeypatch):
    monkeypatch.setattr(equality, "LIMIT_S", 0.2)
    for hostile in HOSTILE:
        with ends():
            assert not equal(hostile, "y-17")


def test_an_answer_that_takes_too_long_is_not_equal_in_any_thread_and_warns_once(monkeypatch):
    monkeypatch.setattr(equality, "LIMIT_S", 0.2)
    logger, warnings = get_logger(), []
    monkeypatch.setattr(logger, "_seen", set())
    monkeypatch.setattr(logger, "warning", lambda text, **_: warnings.append(text))
    with ThreadPoolExecutor(4) as threads:
        slow = [threads.submit(equal, f"9^{{9^{{{n}}}}}", "5") for n in range(9, 13)]
        fast = [threads.submit(equal, "1/2", "0.5") for _ in range(4)]
    assert [future.result() for future in slow] == [False] * 4
    assert [future.result() for future in fast] == [True] * 4
    assert len(warnings) == 1 and "more than 0.2 s" in warnings[0] and "'9^{9^{" in warnings[0]


def test_a_forked_process_has_a_judge_of_its_own():
    assert equal("1/2", "0.5")
    child = os.fork()
    if not child:
        os._exit(0 if equality._IDLE == [] and equal("2/4", "0.5") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert equal("3/6", "0.5")


def test_without_math_verify_the_package_is_named(monkeypatch):
    monkeypatch.setattr(equality, "_IDLE", [])
    monkeypatch.setattr(equality.sys, "executable", "/bin/false")
    with pytest.raises(twinkle.NotAvailableError, match="pip install math-verify"):
        equal("1/2", "0.5")


def test_drawn_nonsense_ends_raises_nothing_and_equals_no_other(monkeypatch):
    monkeypatch.setattr(equality, "LIMIT_S", 0.2)
    rng = random.Random(SEED)
    pieces = [r"\frac", r"\sqrt", r"\text{", r"\left(", r"\pi", r"\cup", r"\{", r"\}", r"\sin",
              r"\log_", "9^", "**", "1e9",
              *"0123456789xyzabc(){}[]^_+-*/=,.|!<>± \\$%&~∪∈°"]  # fmt: skip
    for _ in range(40):
        text = "".join(rng.choice(pieces) for _ in range(rng.randint(1, 200)))
        with ends():
            assert not equal(text, "123456.789")
