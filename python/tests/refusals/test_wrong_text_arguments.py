"""Template's constructor and methods with arguments of wrong types and values: each is refused."""

import pytest
from refusals.values import COUNTS, NONE, refuses

from twinkle.template import Template

pytestmark = pytest.mark.usefixtures("engine_built", "data_built")

IDS = [5, 6, 7, 8]
FEATURE = {"input_ids": IDS, "labels": [6, 7, 8, -100]}
TALK = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


class World:
    def __init__(self, directory):
        self.directory, self.template = str(directory), Template(str(directory))


def message(name):
    turn = {"role": "user", "content": "a"}
    return lambda w, v: w.template.encode({"messages": [{**turn, name: v}]})


# Calls with a value in one place: {name: (call, names of the values that are right there)}.
CALLS = {
    "Template(model_id)": (lambda w, v: Template(v), set()),
    "Template(max_length)": (
        lambda w, v: Template(w.directory, max_length=v), COUNTS - {"2**70"} | NONE),
    "Template(truncation_strategy)": (
        lambda w, v: Template(w.directory, truncation_strategy=v), set()),
    "Template(default_system)": (
        lambda w, v: Template(w.directory, default_system=v), NONE | {"text", "empty text"}),
    "Template(use_chat_template)": (
        lambda w, v: Template(w.directory, use_chat_template=v), {"True"}),
    "Template(enable_thinking)": (
        lambda w, v: Template(w.directory, enable_thinking=v), {"True"}),
    "Template.encode": (lambda w, v: w.template.encode(v), set()),
    "Template.encode(messages)": (lambda w, v: w.template.encode({"messages": v}), set()),
    "Template.encode([messages])": (lambda w, v: w.template.encode({"messages": [v]}), set()),
    "Template.encode(role)": (message("role"), {"text", "empty text"}),  # templates know roles
    "Template.encode(content)": (message("content"), {"text", "empty text", "list", "None"}),
    "Template.encode(add_generation_prompt)": (
        lambda w, v: w.template.encode(TALK, add_generation_prompt=v), {"True"}),
    "Template.batch_encode": (lambda w, v: w.template.batch_encode(v), {"list", "dict"}),
    "Template.batch_encode([])": (lambda w, v: w.template.batch_encode([v]), set()),
    "Template.check": (lambda w, v: w.template.check(v), {"dict"}),
    "Template.batch_check": (lambda w, v: w.template.batch_check(v), {"list"}),
    "Template.decode": (lambda w, v: w.template.decode(v), {"list"}),
    "Template.batch_decode": (lambda w, v: w.template.batch_decode(v), {"list", "list of lists"}),
    "Template.concat_input_feature(feature)": (
        lambda w, v: w.template.concat_input_feature(v, IDS), set()),
    "Template.concat_input_feature(input_ids)": (
        lambda w, v: w.template.concat_input_feature({"input_ids": v}, IDS), {"list"}),
    "Template.concat_input_feature(new_tokens)": (
        lambda w, v: w.template.concat_input_feature(FEATURE, v), {"list"}),
    "Template.format_trajectory": (lambda w, v: w.template.format_trajectory(v), set()),
    "Template.format_trajectory(add_default_system)": (
        lambda w, v: w.template.format_trajectory(TALK, add_default_system=v), {"True"}),
    "Template.parse_tool_call": (
        lambda w, v: w.template.parse_tool_call(v), NONE | {"text", "empty text"}),
    "Template.clean_tool_call": (
        lambda w, v: w.template.clean_tool_call(v), NONE | {"text", "empty text"}),
    "Template.get_vllm_input_ids": (
        lambda w, v: w.template.get_vllm_input_ids(v), {"list"}),
    "Template.set_mm_position_ids": (
        lambda w, v: w.template.set_mm_position_ids({"input_ids": v}), {"list"}),
    "Template.preprocess_images": (lambda w, v: w.template.preprocess_images(v), {"list"}),
    "Template.render": (lambda w, v: w.template.render(v), set()),
}  # fmt: skip


@pytest.fixture(scope="module")
def world(tiny_llama_dir):
    return World(tiny_llama_dir)


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_of_templates_are_refused(world, name):
    call, right = CALLS[name]
    refuses(name, lambda value: call(world, value), right)
