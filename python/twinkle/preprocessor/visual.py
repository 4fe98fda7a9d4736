"""Preprocessors of rows with pictures. They run in Python: what a picture is, a path, bytes or an
object, is not looked at."""

import re

from twinkle import checks
from twinkle.data_format import pack_value
from twinkle.errors import require
from twinkle.preprocessor.base import RowPreprocessor

_PICTURES = [f"image_{i}" for i in range(1, 10)]


class CLEVRProcessor(RowPreprocessor):
    """image, problem and solution to a prompt with the picture, and user_data with ground_truth
    (the contents of the solution's <answer>, else all of it) and solution.

    system: the system message; None: one that asks for <think> and <answer>. InvalidError: no text.
    """

    default_system = (
        "You are given a picture and a question about it. First think about the question step by "
        "step, between <think> and </think>. Then give the answer alone, between <answer> and "
        "</answer>."
    )

    def __init__(self, system=None):
        system = checks.text("data: system", system, none=True, empty=True)
        self.system = self.default_system if system is None else system

    def preprocess(self, row):
        """messages and user_data of a row. InvalidError: a problem that is missing, empty or no
        text, no image, a solution that is no text."""
        problem = checks.text("data: field 'problem'", row.get("problem"))
        require(row.get("image") is not None, "data: field 'image' is missing")
        solution = checks.text("data: field 'solution'", row.get("solution"), none=True, empty=True)
        solution = solution or ""
        answer = re.search(r"<answer>(.*?)</answer>", solution, re.DOTALL)
        parts = [{"type": "image", "image": row["image"]}, {"type": "text", "text": problem}]
        truth = (answer[1] if answer else solution).strip()
        return _row(self.system, parts, ground_truth=truth, solution=solution)


class OlympiadBenchProcessor(RowPreprocessor):
    """question, context, image_1 to image_9, final_answer, solution, unit, is_multiple_answer and
    subject to a prompt, with the pictures first, and user_data with ground_truth (the answers
    joined by ', ', with the unit), solution, is_multiple_answer, subject and unit.

    system: the system message; None: one in `language`, 'zh' or 'en', that asks for \\boxed{}.
    InvalidError: a system that is no text, another language.
    """

    default_systems = {  # noqa: RUF012
        "zh": "你是数学和物理解题专家。请仔细读题，逐步推理，并把最终答案写在 \\boxed{} 中。"
        "如有多个答案，请用逗号分隔。",
        "en": "You are an expert in mathematics and physics. Read the problem carefully, reason "
        "step by step, and give the final answer in \\boxed{}. Separate several answers by commas.",
    }
    contexts = {"zh": "背景信息：", "en": "Context: "}  # noqa: RUF012

    def __init__(self, system=None, language="zh"):
        system = checks.text("data: system", system, none=True, empty=True)
        self.language = checks.one_of("data: language", language, self.default_systems)
        self.system = self.default_systems[language] if system is None else system

    def preprocess(self, row):
        """messages and user_data of a row. InvalidError: a question that is missing, empty or no
        text."""
        text = checks.text("data: field 'question'", row.get("question"))
        if row.get("context"):
            text = f"{self.contexts[self.language]}{row['context']}\n\n{text}"
        pictures = [row[name] for name in _PICTURES if row.get(name) is not None]
        content = [{"type": "image", "image": picture} for picture in pictures]
        content = [*content, {"type": "text", "text": text}] if pictures else text
        unit = row.get("unit") or ""
        return _row(
            self.system,
            content,
            ground_truth=_answer(row.get("final_answer"), unit),
            solution="\n".join(map(str, _list(row.get("solution")))),
            is_multiple_answer=bool(row.get("is_multiple_answer", False)),
            subject=row.get("subject") or "maths",
            unit=unit,
        )


def _list(value):
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _answer(values, unit):
    answers = ", ".join(str(value).strip() for value in _list(values) if str(value).strip())
    return f"{answers} {unit}" if unit and answers else answers


def _row(system, content, **user_data):
    """The prompt, and user_data, whose texts are kept as they are, other values as JSON text."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": content}]
    pairs = [[k, v if isinstance(v, str) else pack_value(v)] for k, v in user_data.items()]
    return {"messages": messages, "user_data": pairs}
