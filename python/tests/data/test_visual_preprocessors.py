"""CLEVRProcessor and OlympiadBenchProcessor: prompts, pictures and what rewards compare with."""

import pytest
from data_rows import dataset

from twinkle.data_format import user_data_get
from twinkle.errors import InvalidError
from twinkle.preprocessor import CLEVRProcessor, OlympiadBenchProcessor

pytestmark = pytest.mark.usefixtures("data_built")


def test_clevr_rows_become_prompts_with_a_picture_and_the_answer_beside():
    rows = dataset([
        {"image": "a.png", "problem": "How many?",
         "solution": "<think>x</think><answer> 3\n</answer>"},
        {"image": {"path": "b.png"}, "problem": "Red?", "solution": " yes "},
        {"image": "c.png", "problem": "No?"},
    ])  # fmt: skip
    rows.cast_column("image", decode=False)
    rows.map(CLEVRProcessor("Look."))
    assert rows[0]["messages"] == [
        {"role": "system", "content": "Look."},
        {"role": "user", "content": [{"type": "image", "image": "a.png"},
                                     {"type": "text", "text": "How many?"}]},
    ]  # fmt: skip
    assert rows[1]["messages"][1]["content"][0]["image"] == {"path": "b.png"}
    truths = [user_data_get(row["user_data"], "ground_truth") for row in rows]
    assert truths == [3, "yes", ""]
    assert user_data_get(rows[1]["user_data"], "solution") == " yes "
    system = CLEVRProcessor()({"image": ["a"], "problem": ["b"]})["messages"][0][0]["content"]
    assert "<think>" in system and "<answer>" in system


def test_olympiad_rows_become_prompts_with_their_pictures_first():
    picture = object()
    columns = {
        "question": ["Find x.", "Find y."], "context": ["Let x > 0.", None],
        "image_1": [picture, None], "image_2": [None, None], "image_9": [b"png", None],
        "final_answer": [["3 ", "", "4"], None], "solution": [["a", "b"], "s"],
        "unit": ["cm", "kg"], "is_multiple_answer": [True, False], "subject": ["physics", None],
    }  # fmt: skip
    made = OlympiadBenchProcessor(language="en")(columns)
    content = made["messages"][0][1]["content"]
    assert content[0]["image"] is picture and content[1]["image"] == b"png"
    assert content[2:] == [{"type": "text", "text": "Context: Let x > 0.\n\nFind x."}]
    assert made["messages"][1][1] == {"role": "user", "content": "Find y."}
    assert "\\boxed{}" in made["messages"][0][0]["content"]
    names = ("ground_truth", "solution", "is_multiple_answer", "subject", "unit")
    data = [[user_data_get(row, name) for name in names] for row in made["user_data"]]
    assert data == [["3, 4 cm", "a\nb", True, "physics", "cm"], ["", "s", False, "maths", "kg"]]


def test_the_language_decides_the_words():
    made = OlympiadBenchProcessor()({"question": ["求 x"], "context": ["设 x > 0"]})
    system, user = made["messages"][0]
    assert "最终答案" in system["content"] and user["content"] == "背景信息：设 x > 0\n\n求 x"
    made = OlympiadBenchProcessor("S", language="en")({"question": ["x"]})
    assert made["messages"][0][0]["content"] == "S"


def test_text_rows_of_it_encode(tiny_llama_dir):
    rows = dataset([{"question": "1 + 1?", "final_answer": ["2"]}])
    rows.map("OlympiadBenchProcessor", init_args={"language": "en"})
    rows.set_template("Template", model_id=tiny_llama_dir)
    rows.encode(add_generation_prompt=True)
    text = rows.template.decode(rows[0]["input_ids"])
    assert text.endswith("user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("work", "row", "text"),
    [
        (
            "CLEVRProcessor",
            {"problem": "a"},
            "row 0: field 'image' is missing",
        ),
        ("CLEVRProcessor", {"image": "a"}, "field 'problem' is missing; the row has image"),
        ("OlympiadBenchProcessor", {"a": 1}, "field 'question' is missing; the row has a"),
    ],
)
def test_a_row_that_lacks_a_field_is_named_and_changes_nothing(work, row, text):
    rows = dataset([row])
    with pytest.raises(InvalidError, match=text):
        rows.map(work)
    assert list(rows) == [row]
