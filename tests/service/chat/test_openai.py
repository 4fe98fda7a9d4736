"""The service through the `openai` package as it is, beside the real SDK."""

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from service.clients import steps, trainer, types

openai = pytest.importorskip("openai")
transformers = pytest.importorskip("transformers")
KEY = "tml-test"
QUESTION = [{"role": "user", "content": "Who are you?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Says it.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
# As Qwen's writes tools, calls and results, in few tokens.
TOOL_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool.function.name }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.content %}{{ m.content }}{% endif %}"
    '{% for call in m.tool_calls or [] %}{{ \'<tool_call>\n{"name": "\' + call.function.name + '
    "'\", \"arguments\": ' }}{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def model(tiny_llama_dir, tmp_path_factory):
    """The tiny model with a template that knows tools."""
    folder = tmp_path_factory.mktemp("with-tools") / "tiny"
    shutil.copytree(tiny_llama_dir, folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TOOL_TEMPLATE
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def server(start, model, tmp_path_factory):
    it = start(model, tmp_path_factory.mktemp("state"))
    yield it
    assert it.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as it:
        yield it


@pytest.fixture(scope="module")
def tokenizer(model):
    return transformers.AutoTokenizer.from_pretrained(model)


def prompt_of(tokenizer, messages=QUESTION, **more):
    text = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, **more
    )
    return tokenizer.encode(text, add_special_tokens=False)


def chat(client, **options):
    options = {"model": "tiny", "messages": QUESTION, "max_tokens": 12} | options
    return client.chat.completions.create(**options)


def metric(server, name, end=""):
    """The sum of all tenants."""
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        lines = [line.rpartition(" ") for line in answer.read().decode().splitlines()]
    return sum(float(n) for key, _, n in lines if key.startswith(name) and key.endswith(end))


def test_a_chat_has_the_tokens_and_logprobs_that_the_sdk_samples(client, service, tokenizer):
    prompt = prompt_of(tokenizer)
    sampler = service.create_sampling_client(base_model="tiny")
    params = types.SamplingParams(max_tokens=12, seed=5, temperature=0.8, top_p=0.9)
    drawn = sampler.sample(
        types.ModelInput.from_ints(prompt), 3, params, topk_sample_logprobs=2
    ).result()
    answer = chat(client, seed=5, n=3, temperature=0.8, top_p=0.9, logprobs=True, top_logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice, sequence in zip(answer.choices, drawn.sequences, strict=True):
        entries = choice.logprobs.content
        assert [entry.logprob for entry in entries] == list(sequence.logprobs)
        assert [entry.token for entry in entries] == [tokenizer.decode(t) for t in sequence.tokens]
        likeliest = [[p for _, p in some] for some in sequence.topk_logprobs]
        assert [[top.logprob for top in e.top_logprobs] for e in entries] == likeliest
        text = tokenizer.decode(sequence.tokens, skip_special_tokens=True)
        assert choice.message.content == text
        assert choice.finish_reason == sequence.stop_reason
    generated = sum(len(sequence.tokens) for sequence in drawn.sequences)
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), generated)
    assert usage.total_tokens == len(prompt) + generated
    assert chat(client, seed=6).choices[0].message.content != answer.choices[0].message.content


def test_a_stream_is_the_same_answer_piece_by_piece(client):
    options = {"seed": 3, "n": 2, "logprobs": True, "top_logprobs": 1, "max_tokens": 20}
    whole = chat(client, **options)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}, **options))
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].usage == whole.usage and not chunks[-1].choices
    assert len(chunks) > 20, "it comes token by token"
    for choice in whole.choices:
        mine = [c.choices[0] for c in chunks[:-1] if c.choices[0].index == choice.index]
        assert mine[0].delta.role == "assistant"
        assert "".join(one.delta.content or "" for one in mine) == choice.message.content
        told = [entry for one in mine if one.logprobs for entry in one.logprobs.content]
        assert [t.logprob for t in told] == [e.logprob for e in choice.logprobs.content]
        assert [one.finish_reason for one in mine][-1] == choice.finish_reason
        assert not any(one.finish_reason for one in mine[:-1])


def test_a_stop_ends_a_text_before_it_also_in_a_stream(client):
    text = chat(client, seed=1, max_tokens=40, extra_body={"ignore_eos": True}).choices[0]
    text = text.message.content
    stop = text[len(text) // 2 :][:3]
    before = text[: text.find(stop)]
    options = {"seed": 1, "max_tokens": 40, "stop": ["no such text", stop]}
    answer = chat(client, **options)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (before, "stop")
    chunks = list(chat(client, stream=True, **options))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == before


def test_completions_echo_prompts_with_their_logprobs(client, service, tokenizer):
    prompts = [tokenizer.encode("Hello! I am"), tokenizer.encode("What is your name?")]
    sampler = service.create_sampling_client(base_model="tiny")
    want = [sampler.compute_logprobs(types.ModelInput.from_ints(p)).result() for p in prompts]
    # As lm-eval's local-completions asks for the log-likelihood of texts.
    answer = client.completions.create(
        model="tiny", prompt=prompts, temperature=0, max_tokens=1, logprobs=1, seed=1234, echo=True
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice, prompt, logprobs in zip(answer.choices, prompts, want, strict=True):
        told = choice.logprobs
        assert len(told.tokens) == len(prompt) + 1
        assert told.token_logprobs[:-1] == [None, *logprobs[1:]]
        assert told.token_logprobs[-1] == max(told.top_logprobs[-1].values()), "greedy"
        assert choice.text.startswith(tokenizer.decode(prompt))
        assert "".join(told.tokens) == choice.text or "\ufffd" in "".join(told.tokens)
    only = client.completions.create(
        model="tiny", prompt=prompts[0], max_tokens=0, logprobs=1, echo=True
    )
    assert only.choices[0].logprobs.token_logprobs == answer.choices[0].logprobs.token_logprobs[:-1]
    assert only.usage.completion_tokens == 0
    texts = client.completions.create(
        model="tiny", prompt=["Hello! I am", "What is your name?"], temperature=0, n=2
    )
    assert [choice.index for choice in texts.choices] == [0, 1, 2, 3]
    assert texts.choices[0].text == texts.choices[1].text
    assert texts.usage.prompt_tokens == sum(map(len, prompts))
    chunks = client.completions.create(
        model="tiny", prompt="Hello! I am", temperature=0, stream=True
    )
    assert "".join(c.choices[0].text for c in chunks) == texts.choices[0].text


@pytest.fixture(scope="module")
def calling(service, tokenizer):
    """The path of an adapter that has learned to call a tool, and to answer with its result."""
    result = [
        *QUESTION,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_0",
                    "type": "function",
                    "function": {"name": "weather", "arguments": {"city": "Paris"}},
                }
            ],
        },
        {"role": "tool", "content": "rain", "tool_call_id": "call_0"},
    ]
    client = trainer(service)
    rows = []
    for messages, reply in ((QUESTION, CALL), (result, "It is rain.")):
        prompt = prompt_of(tokenizer, messages, tools=TOOLS)
        tokens = tokenizer.encode(reply + tokenizer.eos_token, add_special_tokens=False)
        weights = [0.0] * (len(prompt) - 1) + [1.0] * len(tokens)
        row = [*prompt, *tokens]
        inputs = {"target_tokens": row[1:], "weights": weights}
        rows.append(
            types.Datum(model_input=types.ModelInput.from_ints(row[:-1]), loss_fn_inputs=inputs)
        )
    for _ in range(120):
        passed = client.forward_backward(rows, "cross_entropy")
        client.optim_step(types.AdamParams(learning_rate=5e-3))
    assert passed.result().metrics["loss:sum"] < 1
    return client.save_weights_for_sampler("calls").result().path


def test_an_adapter_calls_a_tool_and_reads_its_result(client, calling):
    options = {"model": calling, "tools": TOOLS, "temperature": 0, "max_tokens": 100}
    (choice,) = chat(client, **options).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    deltas = [c.choices[0] for c in chat(client, stream=True, **options)]
    (told,) = [call for one in deltas for call in one.delta.tool_calls or []]
    assert (told.function, told.index) == (type(told.function)(**call.function.model_dump()), 0)
    assert not any(one.delta.content for one in deltas)
    assert deltas[-1].finish_reason == "tool_calls"
    replied = [
        *QUESTION,
        choice.message,
        {"role": "tool", "content": "rain", "tool_call_id": call.id},
    ]
    (choice,) = chat(client, **{**options, "messages": replied}).choices
    assert (choice.message.content, choice.finish_reason) == ("It is rain.", "stop")
    twinkle = calling.replace("tinker://", "twinkle://")
    assert chat(client, **{**options, "model": twinkle}).choices[0].message.tool_calls
    assert [model.id for model in client.models.list()] == ["tiny", calling]


def test_errors_are_openais(client, server, calling):
    with pytest.raises(openai.NotFoundError) as error:
        chat(client, model="none")
    assert (error.value.code, error.value.param) == ("model_not_found", "model")
    with openai.OpenAI(base_url=f"{server.url}/api/v1", api_key="tml-other") as other:
        assert chat(other).object == "chat.completion"
        with pytest.raises(openai.NotFoundError):
            chat(other, model=calling)
    for options, param in (
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"5": 10}}, "logit_bias"),
        ({"tool_choice": "required", "tools": TOOLS}, "tool_choice"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 3}, "top_p"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"n": 1000}, "n"),
        ({"stop": [""]}, "stop"),
        ({"messages": []}, "messages"),
        ({"extra_body": {"seeed": 4}}, None),
        ({"messages": [{"role": "user", "content": "a " * 2000}]}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "messages",
        ),
    ):
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as error:
                chat(client, stream=stream, **options)
            assert (error.value.type, error.value.param) == ("invalid_request_error", param)
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="tiny", prompt=[1, 10**6])
    assert "1000000" in error.value.message


def test_a_client_that_hangs_up_frees_its_sequences(client, server):
    def generated():
        return metric(server, "twinkle_tenant_tokens_total", 'kind="generated"}')

    before = generated()
    options = {"n": 64, "max_tokens": 450, "extra_body": {"ignore_eos": True}}
    with chat(client, stream=True, **options) as stream:
        for chunk in stream:
            if chunk.choices[0].delta.content:
                break
    while metric(server, "twinkle_engine_operations") > 0:
        pass
    assert metric(server, "twinkle_operations_waiting") == 0
    assert 0 < generated() - before < 64 * 450


def test_eight_chats_beside_a_run_move_none_of_its_bits(client, service):
    alone = steps(trainer(service), 6)

    def talk(seed):
        options = {"seed": seed, "max_tokens": 100, "extra_body": {"ignore_eos": True}}
        chunks = chat(client, stream=True, **options)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    with ThreadPoolExecutor(8) as pool:
        texts = pool.map(talk, range(8))
        assert steps(trainer(service), 6) == alone
        texts = list(texts)
        assert list(pool.map(talk, range(8))) == texts
    assert len(set(texts)) == 8


def test_the_pages_examples_run(server, tmp_path):
    page = (Path(__file__).parents[3] / "docs/openai.md").read_text()
    page = page.replace("http://127.0.0.1:8000", server.url).replace("smollm2", "tiny")
    (curl,) = re.findall(r"```bash\n(curl .*?)```", page, re.DOTALL)
    (script,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    answer = subprocess.run(["bash", "-c", curl], capture_output=True, check=True).stdout
    assert json.loads(answer)["choices"][0]["message"]["role"] == "assistant"
    python = [sys.executable, "-c", script]
    assert subprocess.run(python, capture_output=True, check=True, cwd=tmp_path).stdout
