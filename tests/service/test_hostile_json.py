"""Hostile JSON: each field of each route replaced, bodies that are none, names of checkpoints."""

import copy
import json
import re
from pathlib import Path

import pytest
from service.message import ONES, message, train
from service.wire import JSON

zstandard = pytest.importorskip("zstandard")

ROUTES = Path(__file__).parents[2] / "twinkle" / "server" / "routes.def"


TEXT = {"type": "text", "text": "a"}


def good(wire):
    """Bodies by route, each accepted as it is; "seq_id" is given when it is sent."""
    run, session = wire.run(), wire.session()
    sampler = wire.ok(
        "create_sampling_session",
        {"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"},
    )["sampling_session_id"]
    saved = wire.result(wire.ok("save_weights", {"model_id": run, "path": "first", "seq_id": 1}))
    numbered = {"model_id": run, "seq_id": 0}
    return {
        "client/config": {},
        "client/dynamic_config": {},
        "create_session": {"tags": ["a"], "user_metadata": {"a": "b"}, "sdk_version": "0.38.0"},
        "session_heartbeat": {"session_id": session},
        f"sessions/{wire.session()}/finish": {"session_id": session},
        "telemetry": {"session_id": session, "events": [{"event": "x"}]},
        "create_model": {
            "session_id": session,
            "model_seq_id": 0,
            "base_model": "tiny",
            "lora_config": {
                "rank": 4, "seed": 1, "train_unembed": False, "train_mlp": True, "train_attn": True,
            },
        },
        "get_info": {"model_id": run},
        "weights_info": {"tinker_path": saved["path"]},
        "optim_step": numbered
        | {
            "adam_params": {
                "learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12,
                "weight_decay": 0.0, "grad_clip_norm": 0.0,
            }
        },
        "save_weights": numbered | {"path": "again", "overwrite": True},
        "save_weights_for_sampler": numbered
        | {"path": "again", "overwrite": True, "sampling_session_seq_id": 0},
        "load_weights": {
            "session_id": session, "model_seq_id": 0, "path": saved["path"], "optimizer": True,
        },
        "create_sampling_session": {
            "session_id": session, "sampling_session_seq_id": 0, "model_path": saved["path"],
            "base_model": "tiny",
        },
        "asample": {
            "sampling_session_id": sampler, "seq_id": 0, "num_samples": 1,
            "prompt": {"chunks": [{"tokens": [1, 2, 3], "type": "encoded_text"}]},
            "sampling_params": {
                "max_tokens": 2, "seed": 1, "temperature": 1.0, "top_k": -1, "top_p": 1.0,
                "stop": ["a"],
            },
            "prompt_logprobs": True, "topk_sample_logprobs": 0, "topk_prompt_logprobs": 1,
            "prompt_alt_tokens_k": 1, "prompt_logprobs_last_n": 1,
            "target_prompt_logprobs": {
                "data": [7, 8], "dtype": "int64", "shape": [2, 4],
                "sparse_crow_indices": [0, 1, 2], "sparse_col_indices": [0, 3],
            },
        },
        "retrieve_future": {"request_id": run + ":1"},
        "chat/completions": {
            "model": "tiny", "messages": [{"role": "user", "content": [TEXT]}], "n": 1, "seed": 1,
            "stop": ["a"], "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
            "repetition_penalty": 1.0, "ignore_eos": False, "max_tokens": 2, "logprobs": True,
            "top_logprobs": 1, "response_format": {"type": "text"}, "tool_choice": "auto",
            "chat_template_kwargs": {}, "presence_penalty": 0, "user": "u",
        },
        "completions": {
            "model": "tiny", "prompt": [[1, 2]], "echo": True, "logprobs": 1, "max_tokens": 1,
        },
    }  # fmt: skip


HOSTILE = ["null", "[]", "{}", '"x"', "-1", "true", str(2**63), str(2**64), "1e999", "-1e999"]
NUMBERS = ("seq_id", "model_seq_id", "sampling_session_seq_id")


def fields(value, at=()):
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*at, key)
        if isinstance(item, (dict, list)):
            yield from fields(item, (*at, key))


def replaced(body, at, text):
    body = copy.deepcopy(body)
    inner = body
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = "@@"
    return json.dumps(body).replace('"@@"', text)


def below(body, at):
    """Names that an error may give: the field's, and those in it."""
    for key in at:
        body = body[key]
    inner = fields(body, at) if isinstance(body, (dict, list)) else ()
    return {[key for key in path if isinstance(key, str)][-1] for path in (at, *inner)}


def test_each_field_of_each_route_is_read_or_refused_by_its_name(attacked, wire):
    bodies = good(wire)
    known = {re.sub(r"sessions/\w+/", "sessions/{session_id}/", route) for route in bodies}
    listed = re.findall(r'ROUTE\(POST, "/api/v1/(.*?)"', ROUTES.read_text())
    bad = {"save_weights_external"}  # it does not exist, whatever its body
    assert known == set(listed) - {"forward_backward"} - bad, "a route has no good body here"
    next_number = dict.fromkeys(("run", "other"), 2)
    refused = 0
    for route, body in bodies.items():
        of = "run" if "model_id" in body else "other"
        number = next((name for name in NUMBERS if name in body), None)
        for at in fields(body):
            for text in HOSTILE:
                if number:
                    body[number] = next_number[of]
                answer = wire.post(route, replaced(body, at, text))
                where = (route, at, text, answer.body)
                assert answer.status in (200, 404, 400 if "completions" in route else 422), where
                if answer.status == 200:
                    ack = answer.json()
                    if "request_id" in ack:
                        wire.result(ack)
                else:
                    refused += 1
                    names = below(body, at) | {at[-1].removeprefix("model_")} if isinstance(
                        at[-1], str) else below(body, at)  # fmt: skip
                    assert any(name in answer.detail for name in names), where
                if answer.status == 200 or at not in ((number,), ("model_id",)):
                    next_number[of] += 1
    assert refused > 400
    run, seq_id = bodies["get_info"]["model_id"], next_number["run"]
    wire.result(wire.step(run, seq_id).json())  # ends a window that some of these broke
    wire.result(train(wire, message(run, seq_id + 1, weights=ONES)).json())
    # Its weights have been decayed by 2**64.
    assert "would leave NaN" in wire.result(wire.step(run, seq_id + 2).json())["error"]
    other = wire.run()
    wire.result(train(wire, message(other, 1, weights=ONES)).json())
    assert "metrics" in wire.result(wire.step(other, 2).json())


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 10_000, b'{"a":' * 10_000, b'{"a":' * 10_000 + b"1" + b"}" * 10_000, b"[]", b"1",
        b'"x"', b"{", b"\xff\xfe", b'{"model_id":"\xff"}', b'{"model_id":"\\ud800"}', b"NaN",
        b'{"adam_params":{"learning_rate":NaN}}', b'{"seq_id":1' + b"0" * 5000 + b"}", b"\x00",
        b"[" + b"1," * 5_000_000 + b"1]",
    ],
    ids=range(15),
)  # fmt: skip
def test_a_body_that_is_no_object_of_json_is_refused(wire, body):
    for route in ("optim_step", "create_session", "asample"):
        answer = wire.post(route, body)
        # The limit of JSON, from which much more is made, and of what names little.
        most = 64 << 10 if route == "create_session" else 8 << 20
        if len(body) > most:
            assert answer.status == 413 and f"longer than {most} bytes" in answer.detail
            continue
        # In an object that is one, the field that is missing or wrong.
        assert answer.status == 422 or (route == "create_session" and body[:2] == b'{"'), (
            answer.body
        )
        if answer.status == 422:
            assert re.search("body|field|seq_id|_id is missing", answer.detail), answer.detail


def test_a_forward_backward_of_json_uses_its_number_up_and_no_other(attacked, wire):
    run, other = wire.run(), wire.run()
    last = wire.step(run, 9).json()  # it comes first
    head = f'"model_id": "{run}", "seq_id": '
    inner = f'{{"model_id": "{run}", "seq_id": 8}}'
    ones = "[" + "1," * 3_900_000 + "1]"
    packed = zstandard.ZstdCompressor().compress
    for text, encode in (  # each with its number, from 1 on
        ("{" + head + '1, "forward_backward_input": {"data": [], "loss_fn": "ppo"}}', None),
        (f'{{"x": {inner}, {head}2, "seq_id": 8, "model_id": "{other}"}}', None),
        (f'{{"x": "{"y" * 9 * 2**20}", {head}3}}', None),
        (f'{{"x": "{"y" * 9 * 2**20}", {head}4}}', packed),
        (f'{{"x": {ones}, {head}5}}', None),
        (f'{{"x": {"[" * 127 + "]" * 127}, {head}6,', packed),  # and it is cut
        (f'{{{head}7, "x": {"[" * 200}', None),
    ):
        body = encode(text.encode()) if encode else text.encode()
        headers = JSON | ({"content-encoding": "zstd"} if encode else {})
        for _ in range(2):
            answer = wire.post("forward_backward", body, headers)
            assert answer.status in (413, 422), answer.body
    nobodys = [  # and of another: numbers that are none, and what is none
        f'{{"x": {inner}}}', f'{{{head}"8"}}', f'{{{head}8e0}}', f'{{{head}8.0}}', f"[{inner}]",
        f'{{{head}8e999}}', f"{{{head}{8 + 2**32}}}", f"{{{head}{8 + 2**64}}}", f'{{{head}8',
        f'{{"x": {"[" * 128}{"]" * 128}, {head}8}}', f'{{"x": NaN, {head}8}}',
        f'{{"x": 1 {head}8}}',
    ]  # fmt: skip
    for body in nobodys:
        assert wire.post("forward_backward", body).status == 422, body
    assert attacked.wire(key="tml-foreign").post("forward_backward", f"{{{head}8}}").status == 422
    for seq_id in range(1, 8):
        step = wire.step(run, seq_id)
        assert step.detail == f"server: seq_id {seq_id} of '{run}' was refused"
    wire.result(train(wire, message(run, 8, weights=ONES)).json())
    assert "seq_id 1: server: the Content-Type" in wire.result(last)["error"]
    wire.result(train(wire, message(run, 10, weights=ONES)).json())
    wire.result(train(wire, message(other, 1, weights=ONES)).json())
    for of, seq_id in ((run, 11), (other, 2)):
        assert wire.result(wire.step(of, seq_id).json())["metrics"]["step"] == 1


NAMES = [
    "..", ".", "", " ", "/", "a/b", "../a", "../../a", "/etc/passwd", "a\x00b", "a\nb", "%2e%2e",
    "a%2fb",    "a@1", "ü", "a" * 201, "tinker://a/weights/b", "~", "$HOME", "C:\\a", "a" * 100_000,
]  # fmt: skip


def test_names_of_checkpoints_never_leave_the_folder(attacked, wire):
    above = attacked.server.state.parent
    before = sorted(above.iterdir())
    run = wire.run()
    seq_id = 1
    for name in NAMES:
        for route in ("save_weights", "save_weights_for_sampler"):
            body = {"model_id": run, "seq_id": seq_id, "path": name}
            answer = wire.post(route, body)
            assert answer.status == 422, (route, name, answer.body)
            assert "name '" in answer.detail
            seq_id += 1
        for path in (name, f"tinker://{run}/weights/{name}", f"tinker://{name}/weights/x"):
            session = wire.session()
            body = {"session_id": session, "model_seq_id": 0, "path": path}
            assert wire.post("load_weights", body).status in (404, 422)
            body = {"session_id": session, "sampling_session_seq_id": 0, "model_path": path}
            assert wire.post("create_sampling_session", body).status in (404, 422)
    longest = "a" * 200
    for overwrite in (False, True, True):
        body = {"model_id": run, "seq_id": seq_id, "path": longest, "overwrite": overwrite}
        assert "path" in wire.result(wire.ok("save_weights", body))
        seq_id += 1
    assert sorted(above.iterdir()) == before
    assert {p.name for p in attacked.server.state.iterdir()} <= {
        "audit.jsonl", "checkpoints", "journal", "parked", "snapshots"}  # fmt: skip
