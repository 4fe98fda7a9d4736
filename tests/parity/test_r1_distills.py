"""DeepSeek-R1-Distill-Qwen and -Llama, DeepSeek-R1-0528-Qwen3-8B: configurations with the fields
that those checkpoints publish (sizes made small) and a chat template of the distills' form load as
qwen2, llama and qwen3, and give what transformers gives."""

import json
import random
import re

import jinja2
import pytest
import torch
import transformers
from parity import models, ours, reference
from transformers.utils.chat_template_utils import _compile_jinja_template

from twinkle.errors import InvalidError
from twinkle.template import Template

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
MARKS = ["<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "<｜tool▁outputs▁begin｜>",
         "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>",
         "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
         "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"]  # fmt: skip
COMMON = {
    "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 48, "initializer_range": 0.02,
    "intermediate_size": 112, "max_position_embeddings": 131072, "num_attention_heads": 6,
    "num_hidden_layers": 3, "num_key_value_heads": 2, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_cache": True,
}  # fmt: skip
CONFIGS = {
    "qwen2": {
        **COMMON, "architectures": ["Qwen2ForCausalLM"], "max_window_layers": 2,
        "model_type": "qwen2", "rms_norm_eps": 1e-06, "rope_theta": 10000, "sliding_window": 16,
        "transformers_version": "4.44.0", "use_mrope": False, "use_sliding_window": False,
    },
    "llama": {
        **COMMON, "architectures": ["LlamaForCausalLM"], "attention_bias": False, "mlp_bias": False,
        "model_type": "llama", "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "transformers_version": "4.43.0.dev0",
    },
    "qwen3": {
        **COMMON, "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 16,
        "max_window_layers": 36, "model_type": "qwen3", "rms_norm_eps": 1e-06,
        # transformers does not read attn_factor: cos and sin are multiplied by 0.1 ln(4) + 1
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                         "original_max_position_embeddings": 32768,
                         "attn_factor": 0.8782488562869419},
        "rope_theta": 1000000, "sliding_window": None, "transformers_version": "4.51.0",
        "use_sliding_window": False,
    },
}  # fmt: skip

# As published. System text behind BOS; what an assistant thought is left out; calls are written
# where there is no content, with arguments that are text; results of tools, replies to them.
CALL = (
    "'<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + "
    "'\\n' + "
    "'```json' + '\\n' + tool['function']['arguments'] + '\\n' + '```' + '<｜tool▁call▁end｜>'"
)
CHAT_TEMPLATE = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}"
    "{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, "
    "system_prompt='') %}"
    "{%- for message in messages %}{%- if message['role'] == 'system' %}"
    "{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}"
    "{{bos_token}}{{ns.system_prompt}}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}"
    "{{'<｜User｜>' + message['content']}}{%- endif %}"
    "{%- if message['role'] == 'assistant' and message['content'] is none %}"
    "{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls']%}"
    "{%- if not ns.is_first %}{{'<｜Assistant｜><｜tool▁calls▁begin｜>' + " + CALL + "}}"
    "{%- set ns.is_first = true -%}"
    "{%- else %}{{'\\n' + " + CALL + "}}{{'<｜tool▁calls▁end｜><｜end▁of▁sentence｜>'}}"
    "{%- endif %}{%- endfor %}{%- endif %}"
    "{%- if message['role'] == 'assistant' and message['content'] is not none %}"
    "{%- if ns.is_tool %}"
    "{{'<｜tool▁outputs▁end｜>' + message['content'] + '<｜end▁of▁sentence｜>'}}"
    "{%- set ns.is_tool = false -%}"
    "{%- else %}{% set content = message['content'] %}"
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endif %}"
    "{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}"
    "{%- if ns.is_output_first %}"
    "{{'<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>' + message['content'] + "
    "'<｜tool▁output▁end｜>'}}{%- set ns.is_output_first = false %}"
    "{%- else %}{{'\\n<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>'}}"
    "{%- endif %}{%- endif %}{%- endfor -%}"
    "{% if ns.is_tool %}{{'<｜tool▁outputs▁end｜>'}}{% endif %}"
    "{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜><think>\\n'}}{% endif %}"
)


def added(text, special):
    return {"content": text, "lstrip": False, "normalized": False, "rstrip": False,
            "single_word": False, "special": special}  # fmt: skip


def write_tokenizer(directory):
    """Byte-level BPE, with BOS and EOS as objects and the marks as tokens that are not special."""
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, trainers
    from tokenizers import models as kinds

    bpe = Tokenizer(kinds.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        ["What is two plus two? It is four.\n"] * 4,
        trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False),
    )
    bpe.add_special_tokens([AddedToken(text, normalized=False) for text in (BOS, EOS)])
    bpe.add_tokens([AddedToken(text, normalized=False, special=False) for text in MARKS])
    bpe.save(str(directory / "tokenizer.json"))
    config = {
        "add_bos_token": True, "add_eos_token": False, "clean_up_tokenization_spaces": False,
        "bos_token": {"__type": "AddedToken", **added(BOS, True)},
        "eos_token": {"__type": "AddedToken", **added(EOS, True)},
        "pad_token": {"__type": "AddedToken", **added(EOS, True)},
        "model_max_length": 16384, "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": None,
        "use_default_system_prompt": False, "chat_template": CHAT_TEMPLATE,
    }  # fmt: skip
    (directory / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False))
    return bpe


@pytest.fixture(scope="module", params=CONFIGS)
def directory(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"r1-{request.param}")
    bpe = write_tokenizer(folder)
    ids = {"bos_token_id": bpe.token_to_id(BOS), "eos_token_id": bpe.token_to_id(EOS)}
    config = {**CONFIGS[request.param], **ids, "vocab_size": bpe.get_vocab_size() + 21}
    text = json.dumps(config, indent=2)
    (folder / "config.json").write_text(text)
    torch.manual_seed(models.SEED)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(folder), dtype=torch.float32
    )
    models.randomise(model)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(text)  # as published, not as transformers rewrites it
    return folder


def test_the_published_configuration_loads_and_scores_as_in_transformers(directory):
    theirs = models.load_reference(directory)
    rng = random.Random(models.SEED)
    vocab = theirs.config.vocab_size
    sequences = [models.draw_sequence(rng, length, vocab) for length in (1, 7, 40, 130)]
    made = ours.engine(directory, frozen=True)
    model_info = made.model_info()
    assert model_info["family"] == json.loads((directory / "config.json").read_text())["model_type"]
    assert model_info["max_positions"] == 131072
    logps, entropies = ours.scores(made, sequences, entropy=True)
    for i, sequence in enumerate(sequences):
        with torch.no_grad():
            expected = reference.scores(theirs, sequence)
        torch.testing.assert_close(logps[i], expected[0], rtol=0, atol=1e-4)
        torch.testing.assert_close(entropies[i], expected[1], rtol=0, atol=1e-4)


TALK = [
    {"role": "user", "content": "What is two plus two?"},
    {"role": "assistant", "content": "<think>\nIt is\n</think>\n\nfour."},
    {"role": "user", "content": "  plus 二? <b>\n"},
    {"role": "assistant", "content": "six"},
]
TALKS = {
    "one turn": TALK[:2],
    "two turns": TALK,
    "a system text": [{"role": "system", "content": "Be brief.\n"}, *TALK],
    "only thoughts": [TALK[0], {"role": "assistant", "content": "<think>\nIt is</think>"}],
    "results of tools": [
        TALK[0], {"role": "tool", "content": "4"}, {"role": "tool", "content": "5"},
        {"role": "assistant", "content": "It is four."},
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", TALKS)
def test_conversations_render_to_the_tokens_of_transformers(directory, name):
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    template = Template(str(directory))
    messages = TALKS[name]
    assert template.render({"messages": messages}) == theirs.apply_chat_template(
        messages, tokenize=False
    )
    feature = template.encode({"messages": messages})
    expected = theirs.apply_chat_template(messages, return_dict=False)
    assert feature["input_ids"].tolist() == expected
    assert expected[0] == theirs.bos_token_id and expected[-1] == theirs.eos_token_id
    trained = [i for i in feature["labels"].tolist() if i != -100]
    answers = re.findall(
        f"(?:<｜Assistant｜>|<｜tool▁outputs▁end｜>)(.*?{EOS})", theirs.decode(expected), re.DOTALL
    )
    assert len(answers) == sum(m["role"] == "assistant" for m in messages)
    assert theirs.decode(trained) == "".join(answers)
    prompt = messages[:-1]
    asked = template.encode({"messages": prompt}, add_generation_prompt=True)
    assert asked["input_ids"].tolist() == theirs.apply_chat_template(
        prompt, return_dict=False, add_generation_prompt=True
    )


ARGUMENTS = '{"city": "Köln", "days":2}'


def calls(arguments, count=1, **content):
    function = {"name": "weather", "arguments": arguments}
    return {"role": "assistant", **content,
            "tool_calls": [{"type": "function", "function": function}] * count}  # fmt: skip


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("content", [{"content": None}, {}])
def test_calls_without_content_are_the_text_and_the_labels(directory, count, content):
    # apply_chat_template of transformers drops a content of None; its Jinja environment does not.
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    jinja = _compile_jinja_template(CHAT_TEMPLATE)
    template = Template(str(directory))
    rest = [*({"role": "tool", "content": str(i)} for i in range(count)),
            {"role": "assistant", "content": "It is four."}]  # fmt: skip
    talk = [TALK[0], calls(ARGUMENTS, count, **content), *rest]
    reference = [TALK[0], calls(ARGUMENTS, count, content=None), *rest]
    for length in (2, 2 + count, 3 + count):
        messages = talk[:length]
        text = jinja.render(messages=reference[:length], bos_token=BOS)
        assert template.render({"messages": messages}) == text
        assert text.count(f"```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜>") == count
        feature = template.encode({"messages": messages})
        assert feature["input_ids"].tolist() == theirs.encode(text, add_special_tokens=False)
        # The texts between the question and the first result, and after the last one.
        results = text.find("<｜tool▁outputs▁begin｜>")
        written = text[text.index("<｜tool▁calls▁begin｜>") : results if results > 0 else None]
        if length == len(talk):
            written += f"It is four.{EOS}"
        trained = [i for i in feature["labels"].tolist() if i != -100]
        assert theirs.decode(trained) == written


def test_calls_beside_a_content_are_left_out_and_calls_that_fail_are_refused(directory):
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    template = Template(str(directory))
    for content in ("", "four."):
        messages = [TALK[0], calls(ARGUMENTS, content=content)]
        text = theirs.apply_chat_template(messages, tokenize=False)
        assert template.render({"messages": messages}) == text and "weather" not in text
    for message, cause in (
        ({"role": "assistant"}, r"\(a message of role assistant has no content\)"),
        (calls({"days": 2}, content=None), "the chat template failed"),
    ):
        with pytest.raises((TypeError, jinja2.UndefinedError)):
            theirs.apply_chat_template([TALK[0], message], tokenize=False)
        with pytest.raises((TypeError, jinja2.UndefinedError)):
            _compile_jinja_template(CHAT_TEMPLATE).render(messages=[message], bos_token=BOS)
        with pytest.raises(InvalidError, match=cause):
            template.encode({"messages": [TALK[0], message]})


def test_what_was_thought_is_in_the_rows_and_not_in_the_tokens(directory):
    template = Template(str(directory))
    text = template.render({"messages": TALK})
    assert "It is" not in text and "<｜Assistant｜>\n\nfour.<｜end▁of▁sentence｜>" in text
    apart = {"role": "assistant", "content": "four.", "reasoning_content": "It is"}
    assert template.render({"messages": [TALK[0], apart, *TALK[2:]]}) == text
    standard = template.format_trajectory({"messages": TALK})["messages"]
    assert standard[1]["reasoning_content"] == "It is" and standard[1]["content"] == "four."
