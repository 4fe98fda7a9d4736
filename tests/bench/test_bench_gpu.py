"""bench/gpu: the G questions, rehearsed on the CPU with tiny models; their shapes and aims. What
takes how long is not asked."""

import importlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import decoding  # noqa: E402
import device  # noqa: E402
import limits  # noqa: E402
import rows  # noqa: E402
import run as program  # noqa: E402
import verdict  # noqa: E402
from gpu import questions, shapes  # noqa: E402
from gpu import run as gpu_run  # noqa: E402
from inputs import RandomInputs  # noqa: E402
from worker import Worker  # noqa: E402

IDS = list(rows.GPU)


@pytest.fixture
def here(monkeypatch):
    """Workers in this process, where the libraries are loaded already; they are asked through JSON
    all the same. Lists the systems in the order in which they were opened."""
    opened = []

    def init(self, system, threads):
        opened.append(system)
        self.system = importlib.import_module(system).System()

    def ask(self, call, **arguments):
        value = getattr(self.system, call)(**json.loads(json.dumps(arguments)))
        return json.loads(json.dumps(value))

    monkeypatch.setattr(Worker, "__init__", init)
    monkeypatch.setattr(Worker, "ask", ask)
    monkeypatch.setattr(Worker, "__exit__", lambda self, *_: delattr(self, "system"))
    return opened


@pytest.fixture
def rehearsed(here, monkeypatch, tmp_path):
    """rehearsed(arguments...): the rows, which went to outputs/bench alone."""
    for needed in ("transformers", "peft"):
        pytest.importorskip(needed)
    pytest.importorskip("twinkle._core", reason="the extension is not built")
    monkeypatch.setattr(program, "ROOT", tmp_path)

    def run(*arguments):
        assert program.main(["--rehearse", *arguments]) == 0
        (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert file == tmp_path / "outputs/bench/rehearsal.json"
        return json.loads(file.read_text())

    return run


def test_every_g_question_runs_on_the_cpu_with_tiny_models(rehearsed, here, capsys):
    found = rehearsed()
    counts = {id_: sum(row["id"] == id_ for row in found) for id_ in IDS}
    assert counts == {**dict.fromkeys(IDS, 1), "G3": 2, "G6": 2, "G8": 3, "G10": 2}
    for row in found:
        assert row["rehearsal"] is True and row["what"].startswith("rehearsal: ")
        assert row["valid"] and "device" not in row
        assert all(row["samples"][name] for name in ("ours", "peer"))
        assert row.keys() >= {"ours", "peer", "peer_name", "ratio", "limit", "goal", "floor"}
    peers = {row["id"]: row["peer_name"].split()[0].strip(",") for row in found}
    ourselves = dict.fromkeys(("G6", "G7", "G10"), "Twinkle")
    assert peers == {**dict.fromkeys(IDS, "transformers"), "G5": "torch", **ourselves}
    assert "every floor" not in capsys.readouterr().out  # nothing is judged
    # A model is loaded once by each side for all questions of its shape; G4 has its own processes.
    kept = here[1:-2]
    assert here[0] == "system_limits" and here[-2:] == ["system_twinkle", "system_peft"]
    assert kept.count("system_twinkle_batch") == len(questions.PLAN)
    assert kept.count("system_peft_batch") == len(questions.PLAN) - 1
    assert kept.count("gpu.system_head") == 1 and len(kept) == 2 * len(questions.PLAN)


def test_without_its_exactness_the_engine_is_asked_so_and_the_rows_say_it(rehearsed, monkeypatch):
    import system_twinkle

    options, load = [], system_twinkle.System.load
    monkeypatch.setattr(
        system_twinkle.System,
        "load",
        lambda self, *args, **kw: (options.append(kw["options"]), load(self, *args, **kw)),
    )
    (found,) = rehearsed("--only", "G7", "--no-deterministic")
    assert [o["deterministic"] for o in options] == [False]
    assert found["what"].endswith("Qwen3-4B's shape, deterministic=False")
    rehearsed("--only", "G7")
    assert [o["deterministic"] for o in options] == [False, True]


@pytest.mark.parametrize("name", ["135M", "0.6B", "4B", "8B"])
def test_shapes_have_the_published_numbers_of_parameters(name):
    of = shapes.REAL[name]
    count = sum(torch.Size(shape).numel() for file in shapes.tensors(of) for shape in file.values())
    published = {"135M": 134.515e6, "0.6B": 596.05e6, "4B": 4.0225e9, "8B": 8.0303e9}
    assert count == pytest.approx(published[name], rel=1e-4)


@pytest.mark.parametrize("name", shapes.TINY)
def test_a_written_model_is_what_transformers_expects_and_is_written_once(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    of = shapes.TINY[name]
    directory = Path(shapes.written(tmp_path, of))
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(
        directory, output_loading_info=True
    )
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.dtype == torch.bfloat16
    loss = model(torch.arange(20)[None], labels=torch.arange(20)[None]).loss
    assert 3 < loss.item() < 9  # near that of a fair choice: nothing explodes
    before = [file.stat().st_mtime_ns for file in sorted(directory.iterdir())]
    assert shapes.written(tmp_path, of) == str(directory)
    assert [file.stat().st_mtime_ns for file in sorted(directory.iterdir())] == before
    (directory / "model.safetensors.index.json").unlink()  # as where a run was stopped
    assert shapes.written(tmp_path, of) == str(directory)
    assert (directory / "model.safetensors.index.json").exists()


def shape_of(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(shapes.REAL[name]))
    return limits.Shape.of(tmp_path)


@pytest.mark.parametrize(
    ("name", "thousands"), [("135M", 796), ("0.6B", 205), ("4B", 39.7), ("8B", 23.6)]
)
def test_the_limits_of_training_are_those_of_the_goals(name, thousands, tmp_path):
    """At 790 TFLOP/s and 4,096 tokens; of rank 16."""
    gflop = limits.training_gflop(shape_of(name, tmp_path), 16, [4096], 4096) / 4096
    assert 790e3 / gflop == pytest.approx(1e3 * thousands, rel=1e-2)


def test_the_limits_of_decoding_with_adapters_are_those_of_the_goals(tmp_path):
    """4B: weights of 8.0 GB, keys and values of 64 x 1,024 tokens 9.7 GB, 66 MB an adapter."""
    shape = shape_of("4B", tmp_path)
    adapter = 2 * shape.adapter_weights(16)
    context = 64 * 1024 * shape.kv_bytes
    assert [shape.bytes, context, adapter] == pytest.approx([8.0e9, 9.7e9, 66e6], rel=1e-2)
    for count, lost in ((8, 0.03), (64, 0.19)):
        whole = shape.bytes + context + count * adapter
        assert count * adapter / whole == pytest.approx(lost, abs=5e-3)


def test_an_embedding_that_is_not_the_head_is_held_and_not_read(tmp_path):
    shape = shape_of("8B", tmp_path)
    assert shape.resident_bytes == pytest.approx(16.06e9, rel=1e-3)
    assert shape.resident_bytes - shape.bytes == 2 * 128256 * 4096


def test_throughput_is_limited_by_products_or_by_reading():
    shape = limits.Shape(hidden=10, inner=20, kv_width=5, layers=1, vocab=100)
    assert (shape.layer_weights, shape.head_weights, shape.kv_bytes) == (900, 1000, 20)
    many = limits.Machine(gemm_gflops=1e-6, read_gb_s=1e9, note="")
    few = limits.Machine(gemm_gflops=1e9, read_gb_s=1e-6, note="")
    work = [30, 10], [4, 6]  # 50 tokens, 10 of them new
    flop = 2 * (50 * 900 + 10 * 1000)
    read = shape.bytes * 10 / 2 + 20 * (4 * 30 + 8 + 6 * 10 + 18)
    assert limits.throughput_tokens_s(shape, many, *work, 2) == pytest.approx(10 / (flop / 1e3))
    assert limits.throughput_tokens_s(shape, few, *work, 2) == pytest.approx(10 / (read / 1e3))


def test_drawn_requests_are_the_same_for_a_seed_and_have_the_lengths_of_talks():
    prompts, counts = RandomInputs(1000, 8, 20).requests(1000, 1024)
    assert (prompts, counts) == RandomInputs(1000, 8, 20).requests(1000, 1024)
    for lengths in (list(map(len, prompts)), counts):
        assert min(lengths) >= 4 and max(lengths) <= 1024
        assert 150 < sum(lengths) / 1000 < 250


def test_a_gpus_share_is_of_its_data_sheet_where_that_is_known(monkeypatch):
    run = gpu_run.Run.__new__(gpu_run.Run)
    run.machine = limits.Machine(gemm_gflops=790e3, read_gb_s=4300, note="")
    for name, notes in (
        ("NVIDIA H200", ["55.0% of the data sheet's 989 TFLOP/s"]), ("another", []), (None, []),
    ):  # fmt: skip
        run.device_name = name
        assert run.utilization({"share_of_limit": 0.55 * 989 / 790}) == notes


def made(id_, what="a row", peer="transformers 5", ratio=9.0, share=0.9):
    row = {"id": id_, "what": what, "peer_name": peer, "ratio": ratio, "share_of_limit": share}
    return row | {"valid": True}


@pytest.mark.parametrize(
    ("row", "ratios", "shares"),
    [
        (made("G1"), (1.5, 2.0), (None, 0.69)),
        (made("G2"), (1.0, None), (0.59, 0.70)),
        (made("G3"), (4.0, 8.0), (None, None)),
        (made("G4"), (1.67, 2.5), (None, None)),
        (made("G5", peer="torch 2"), (None, None), (0.63, 0.82)),
        (made("G6", peer=verdict.SER), (3.0, 5.0), (None, None)),
        (made("G6", peer=verdict.ONE), (None, 0.92), (None, None)),
        (made("G7", peer=questions.FROZEN), (0.89, 0.94), (None, None)),
        (made("G8", "decoding, Qwen3-0.6B's shape"), (1.0, None), (None, 0.60)),
        (made("G8", "decoding, Qwen3-4B's shape"), (1.0, None), (0.65, 0.80)),
        (made("G8", "decoding, Llama-3.1-8B's shape"), (1.0, None), (0.65, 0.80)),
        (made("G9"), (1.0, None), (0.53, 0.72)),
        (made("G10", "x, 8 adapters", "Twinkle without adapters"), (0.85, 0.92), (None, None)),
        (made("G10", "x, 64 adapters", "Twinkle without adapters"), (0.68, 0.76), (None, None)),
        (made("G11"), (1.0, None), (0.55, 0.70)),
    ],
    ids=lambda of: of["id"] + of["what"] + of["peer_name"] if isinstance(of, dict) else "",
)
def test_what_a_gpus_row_must_reach_and_what_is_wanted_of_it(row, ratios, shares):
    assert (verdict.floor_of(row), verdict.goal_of(row)) == ratios
    assert verdict.shares_of(row) == shares
    assert verdict.misses([row], []) == []
    if ratios[0] is not None:
        assert verdict.misses([row | {"ratio": ratios[0] - 0.01}], [])
    if shares[0] is not None:
        (miss,) = verdict.misses([row | {"share_of_limit": shares[0] - 0.01}], [])
        assert (miss.peer, miss.floor) == ("the limit", shares[0])


def test_a_gpu_that_is_not_there_is_refused_by_name_and_so_are_questions_of_another_device(
    monkeypatch, capsys
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        SystemExit, match=r"--device is 'cuda', torch finds no CUDA device.*--rehearse"
    ):
        program.main(["--device", "cuda"])
    for wrong, text in (
        (["--only", "G1"], "--only names G1, which is of a GPU: add --device cuda, or --rehearse"),
        (["--device", "cuda", "--only", "G1,C1"], "--only names C1, which is of the CPU"),
        (["--rehearse", "--only", "C1"], "leave --device cuda and --rehearse out"),
        (["--rehearse", "--shapes", "4B,5B"], "--shapes is '4B,5B', it must name some of head"),
    ):
        with pytest.raises(SystemExit):
            program.parse(wrong)
        assert text in capsys.readouterr().err
    assert program.parse(["--device", "cuda"]).only == program.parse(["--rehearse"]).only == IDS
    assert {id_ for asked in questions.PLAN.values() for id_, _ in asked} == set(IDS)


def test_a_gpus_rows_go_to_its_own_file_and_table(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    asked = program.parse(["--device", "cuda"])
    assert program.places(asked)[0] == ROOT / "bench/results/nvidia-h200.json"
    quick = program.parse(["--device", "cuda", "--quick"])
    assert program.places(quick) == (ROOT / "outputs/bench/nvidia-h200.json", None)
    elsewhere = program.parse(["--device", "cuda", "--out", str(tmp_path)])
    assert program.places(elsewhere) == (tmp_path / "nvidia-h200.json", None)
    assert device.name_of_gpu() == "NVIDIA H200"

    document, results = tmp_path / "d.md", tmp_path / "nvidia-h200.json"
    cpu = f"{rows.BEGIN}\nleft alone\n{rows.END}\n"
    document.write_text(f"{cpu}{rows.GPU_BEGIN}\nold\n{rows.GPU_END}\n")
    fields = {"unit": "tokens/s", "noisy": False, "valid": True, "notes": [], "cpu": "a CPU"}
    fields |= {"threads": 16, "machine": "fast", "device": "NVIDIA H200"}
    samples = {"ours": [20.0], "peer": [10.0]}
    rows.write(
        [rows.make_row("G1", "training", "transformers 5", samples, 40.0, **fields)],
        results, document,
    )  # fmt: skip
    text = document.read_text()
    assert text.startswith(cpu) and "old" not in text
    assert "measured on: NVIDIA H200; a CPU, 16 threads" in text
    table = [line for line in text.splitlines() if line.startswith("| G")]
    assert len({line.count("|") for line in table}) == 1 and "| 1.50 | 2.00 |" in table[0]
    absent = {line.split("|")[1].strip() for line in table if "not measured: " in line}
    assert absent == set(IDS) - {"G1"}
    assert "`bench/run.py --device cuda --only G11`" in table[-1]


def test_prompts_are_dealt_out_to_adapters_and_replies_come_back_in_their_order():
    pytest.importorskip("twinkle._core", reason="the extension is not built")
    import system_twinkle

    asked = {}

    def sample(tenant, prompts, params):
        asked[tenant] = [prompt.tolist() for prompt in prompts]
        replies = [[{"tokens": prompt[:1]}] for prompt in prompts]
        return SimpleNamespace(result=lambda: replies)

    system = system_twinkle.System()
    system.device, system.engine = device.Device("cpu"), SimpleNamespace(sample=sample)
    system.adapters = ["a", "b"]
    prompts = [[number, 9] for number in range(5)]
    tokens = system.decode(prompts, num_tokens=1, with_adapters=True)["tokens"]
    assert tokens == [[0], [1], [2], [3], [4]]
    assert asked == {"a": [[0, 9], [2, 9], [4, 9]], "b": [[1, 9], [3, 9]]}


def test_requests_that_come_again_find_nothing_of_their_prompts_kept():
    pytest.importorskip("twinkle._core", reason="the extension is not built")
    import system_twinkle

    system = system_twinkle.System()
    prompts, counts = [[3, 4, 5] * 60, [6, 7, 8] * 60], [2, 1]
    with tempfile.TemporaryDirectory() as folder:
        system.load(shapes.written(folder, shapes.TINY["4B"]))
        system.start_decoding(2)
        for _ in range(2):
            found = system.throughput(prompts, counts)
        stats = system.engine.stats()
    assert found["tokens"] == 3 and found["wall_s"] > 0
    assert stats["num_prefix_tokens"] == 0


def test_a_gpu_is_waited_for_before_and_after_and_asked_for_its_peak(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda, "init", lambda: seen.append("init"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: seen.append("wait"))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 3 << 20)
    of = device.Device("cuda")
    with of.meter():
        seen.append("work")
    assert (seen, of.peak_mib()) == (["init", "wait", "work", "wait"], 3)
    assert device.Device("cpu").peak_mib() > 1


def test_what_the_device_lacks_is_said_before_models_are_written(here, monkeypatch, tmp_path):
    """As from an engine that was built without kernels for a GPU."""
    pytest.importorskip("twinkle._core", reason="the extension is not built")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(gpu_run, "name_of_gpu", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    asked = program.parse(["--device", "cuda"])
    with pytest.raises(Exception, match="device is 'cuda'"), gpu_run.Run(asked, None, "a CPU"):
        pass
    assert here == ["system_twinkle"]
    written = sum(file.stat().st_size for file in tmp_path.rglob("*.safetensors"))
    assert 0 < written < 1 << 20


def test_the_documents_gpu_table_is_that_of_the_results():
    document = (ROOT / "docs/benchmarks.md").read_text()
    table = rows.gpu_table(rows.of_gpus(ROOT / "bench/results"))
    assert document == rows.between_markers(document, table, rows.GPU_BEGIN, rows.GPU_END)


def test_a_model_stays_loaded_until_another_is_asked_for(here, monkeypatch):
    calls = []
    system = SimpleNamespace(
        System=lambda: SimpleNamespace(
            load=lambda model, **_: calls.append(model), forget=lambda: calls.append("forget")
        )
    )
    monkeypatch.setattr(importlib, "import_module", lambda _: system)
    from worker import Kept, with_model

    with Kept() as kept:
        run = SimpleNamespace(kept=kept, model="a", device="cpu", options={}, threads=1)
        first = with_model(None, run, "system_twinkle")
        assert with_model(None, run, "system_twinkle_batch") is first
        run.model = "b"
        assert with_model(None, run, "system_twinkle") is not first
        assert not hasattr(first, "system")  # its process has ended
    assert calls == ["a", "forget", "forget", "b", "forget"]


@pytest.mark.soak
def test_the_cpus_questions_run_with_the_same_loops(here, monkeypatch, tmp_path, request):
    """Those whose work the G questions share; of a tiny model, in one round."""
    for needed in ("transformers", "peft"):
        pytest.importorskip(needed)
    pytest.importorskip("twinkle._core", reason="the extension is not built")
    named, _ = map(request.getfixturevalue, ("tiny_llama_dir", "data_dir"))
    model = shapes.written(tmp_path / "models", shapes.TINY["4B"])
    for file in Path(named).glob("*token*"):
        shutil.copy(file, model)
    shutil.copy(Path(named) / "chat_template.jinja", model)
    monkeypatch.setattr(program, "ROOT", tmp_path)
    monkeypatch.setattr(decoding, "has_llama", lambda: False)
    only = "C1,C2,C3,C4,C5,C6,C7,C9,C10,C11,F1"
    program.main(["--quick", "--rounds", "1", "--only", only, "--model", model])
    found = json.loads((tmp_path / "outputs/bench/cpu.json").read_text())
    assert {row["id"] for row in found} == set(only.split(","))
    for row in found:
        assert "rehearsal" not in row and "device" not in row
        assert row["notes"] or row["id"] in ("C5", "C6"), row
