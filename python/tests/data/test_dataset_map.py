"""Preprocessors and filters, the built-in ones and those of Python."""

import pytest
from data_rows import dataset, numbers

from twinkle.errors import InvalidError

pytestmark = pytest.mark.usefixtures("data_built")


def test_names_classes_and_instances_of_a_preprocessor_agree(data_dir):
    from twinkle.preprocessor import SelfCognitionProcessor, llm

    assert llm.SelfCognitionProcessor is SelfCognitionProcessor
    arguments = {"model_name": "N", "model_author": "A"}
    results = []
    for processor, init in (
        ("SelfCognitionProcessor", arguments),
        (SelfCognitionProcessor, arguments),
        (SelfCognitionProcessor("N", model_author="A"), None),
    ):
        rows = dataset(data_dir / "self_cognition.jsonl")
        rows.map(processor, init_args=init, load_from_cache_file=False, num_proc=2)
        results.append(list(rows))
    assert results[0] == results[1] == results[2]
    for row in results[0]:
        user, assistant = (
            row[key].replace("{{NAME}}", "N").replace("{{AUTHOR}}", "A")
            for key in ("query", "response")
        )
        assert [m["content"] for m in row["messages"]] == [
            "You are a helpful assistant.",
            user,
            assistant,
        ]


def test_gsm8k_keeps_every_ground_truth(data_dir):
    from twinkle.preprocessor.llm import GSM8KProcessor

    rows = dataset(data_dir / "gsm8k_train.jsonl")
    rows.map(GSM8KProcessor())
    for row in rows:
        truth = row["answer"].split("####")[1].strip().replace(",", "")
        assert row["user_data"] == [["ground_truth", truth]]
        assert row["messages"] == [{"role": "user", "content": row["question"]}]


def test_a_builtin_called_from_python_gives_what_map_gives(data_dir):
    from twinkle.preprocessor import AlpacaProcessor

    columns = dataset(data_dir / "alpaca_en_demo.json")[:20]
    mapped = dataset(data_dir / "alpaca_en_demo.json", data_slice=range(20))
    mapped.map(AlpacaProcessor)
    assert AlpacaProcessor()(columns) == {"messages": mapped["messages"]}


def test_a_subclass_of_a_builtin_changes_what_that_makes_of_a_row():
    from twinkle.preprocessor import GSM8KProcessor

    class Mine(GSM8KProcessor):
        def preprocess(self, row):
            made = super().preprocess(row)
            return {**made, "asked": made["messages"][0]["content"].upper()}

    rows = dataset([{"question": "what?", "answer": "it #### 7"}])
    rows.map(Mine)
    assert rows[0]["asked"] == "WHAT?" and rows[0]["user_data"] == [["ground_truth", "7"]]


def test_python_preprocessors_and_functions_run_over_columns_or_rows():
    from twinkle.preprocessor import Preprocessor

    class Double(Preprocessor):
        def __call__(self, columns):
            rows = self.map_col_to_row(columns)
            return self.map_row_to_col([{"j": row["i"] * 2} for row in rows])

    wanted = [{"i": i, "j": 2 * i} for i in range(25)]
    for work, options in (
        (Double, {}),
        (Double(), {"batch_size": 7}),
        (lambda columns: {"j": [2 * i for i in columns["i"]]}, {"batched": True}),
        (lambda row: {"j": 2 * row["i"]}, {"batched": False}),
    ):
        rows = dataset(numbers(25))
        rows.map(work, **options)
        assert list(rows) == wanted
    rows = dataset(numbers(4))
    rows.map(lambda columns: {"j": columns["i"][:1]}, remove_columns=["i"], batch_size=2)
    assert list(rows) == [{"j": 0}, {"j": 2}]


def test_a_failing_row_is_named_and_nothing_changes(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "q", "answer": "#### 1"}\n\n{"question": "q"}\n')
    rows = dataset(file)
    before = list(rows)
    with pytest.raises(InvalidError, match=r"rows\.jsonl line 3: field 'answer' is missing"):
        rows.map("GSM8KProcessor")

    def broken(columns):
        return {"n": [len(answer) for answer in columns["answer"]]}

    with pytest.raises(InvalidError, match=r"rows\.jsonl line 3: broken: TypeError"):
        rows.map(broken)
    with pytest.raises(InvalidError, match=r"rows\.jsonl line 3: <lambda>: KeyError\('answer'\)"):
        rows.filter(lambda row: row["answer"] != "")
    with pytest.raises(InvalidError, match="returned 1 rows for 2"):
        rows.map(lambda columns: {"n": [1]})
    with pytest.raises(InvalidError, match=r"; it was given columns, .*: batched=False gives it a"):
        rows.map(lambda row: {"n": row["answer"].upper()})
    with pytest.raises(InvalidError, match="returned int, it must return a dict of columns"):
        rows.map(lambda columns: 5)
    with pytest.raises(InvalidError, match="map: unknown argument 'btached'"):
        rows.map("GSM8KProcessor", btached=True)
    with pytest.raises(InvalidError, match=r"there are .*GSM8KProcessor.*SelfCognitionProcessor"):
        rows.map("GSMProcessor")
    with pytest.raises(InvalidError, match="unknown argument 'sytem'"):
        rows.map("GSM8KProcessor", init_args={"sytem": "s"})
    with pytest.raises(InvalidError, match="is a function, it cannot take init_args"):
        rows.map(broken, init_args={"a": 1})
    with pytest.raises(InvalidError, match="'int'> must be a Preprocessor, a subclass of it"):
        rows.map(int)
    with pytest.raises(InvalidError, match="columns have different lengths"):
        rows.map(lambda columns: {"a": [1], "b": [1, 2]})
    assert list(rows) == before


def test_filters_are_classes_instances_or_functions():
    from twinkle.preprocessor import DataFilter, Filter

    class Below(Filter):
        def __init__(self, limit=2):
            self.limit = limit

        def __call__(self, row):
            return row["i"] < self.limit

    assert Filter is DataFilter
    for keep, init in (
        (Below, None),
        (Below(2), None),
        (Below, {"limit": 2}),
        (lambda r: r["i"] < 2, None),
    ):
        rows = dataset(numbers(5))
        rows.filter(keep, init_args=init)
        assert list(rows) == numbers(2)


def test_base_classes_say_what_to_define():
    from twinkle.preprocessor import Filter, Preprocessor

    with pytest.raises(NotImplementedError, match="Preprocessor must define __call__"):
        Preprocessor()({})
    with pytest.raises(NotImplementedError, match="DataFilter must define __call__"):
        Filter()({})
    import twinkle.preprocessor
    import twinkle.preprocessor.llm

    built_in = {"AlpacaProcessor", "GSM8KProcessor", "SelfCognitionProcessor"}
    assert built_in <= set(twinkle.preprocessor.__all__)  # as `import *` gives
    names = dir(twinkle.preprocessor)
    assert len(names) == len(set(names))
    assert "GSM8KProcessor" in dir(twinkle.preprocessor) and "GSM8KProcessor" in dir(
        twinkle.preprocessor.llm
    )
    with pytest.raises(AttributeError, match="has no attribute 'NopeProcessor'; there are"):
        twinkle.preprocessor.NopeProcessor  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'nope'"):
        twinkle.preprocessor.nope  # noqa: B018
