"""A run of the G questions: the device, its limits, and one model shape after the other."""

import copy
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace

import limits
from device import name_of_gpu
from foreign import Patience
from gpu import questions, shapes
from inputs import RandomInputs
from worker import Kept, Worker

SEED = 20
# Dense bfloat16 TFLOP/s of the maker's data sheet, by a part of the device's name.
NOMINAL = {"H200": 989.0, "H100 80GB HBM3": 989.0}


@dataclass(frozen=True)
class Sizes:
    """Sizes of the work, in tokens, sequences, tenants."""

    length: int = 4096  # in a sequence of a training step
    long: int = 8192  # in the rows of G4 and G5, and in G11's prompt
    tenants: int = 8
    tenant_tokens: int = 512
    rank: int = 16
    context: int = 1024  # in the prompts before decoding
    batch: int = 64  # sequences of G10
    adapters: tuple = (8, 64)
    new_tokens: int = 64
    requests: int = 1000
    peer_requests: int = 64
    longest: int = 1024  # prompt or reply of G9
    at_a_time: int = 256  # sequences of G9
    kv_tokens: int = 131072
    repeats: int = 20  # steps of a small model in one sample; of 4B a fifth, of 8B a tenth


TINY = Sizes(
    length=24, long=32, tenants=3, tenant_tokens=8, rank=4, context=6, batch=4, adapters=(2, 4),
    new_tokens=3, requests=12, peer_requests=3, longest=10, at_a_time=8, kv_tokens=512, repeats=2,
)  # fmt: skip
TRIAL = limits.Trial(((4096, 2560, 9728), (8192, 8192, 8192)), 8192)
TINY_TRIAL = limits.Trial(((24, 48, 96), (64, 64, 64)), 1)


class Run:
    """Everything that the questions need; use as a context manager."""

    beside_llama, processes = False, 1

    def __init__(self, arguments, bar, cpu):
        """bar: bench/run.py's Bar; cpu: the processor's name."""
        self.rehearsal, self.seed = arguments.rehearse, SEED
        self.shapes = arguments.shapes or list(questions.PLAN)
        self.device = arguments.device
        self.device_name = None if self.device == "cpu" else name_of_gpu()
        self.threads = arguments.threads
        self.rounds = 1 if arguments.rehearse else 2 if arguments.quick else arguments.rounds
        self.attempts = self.rounds if arguments.rehearse or arguments.quick else 2 * self.rounds
        self.patience = Patience(limit_cores=1.0, seconds=arguments.seconds)
        self.sizes = TINY if arguments.rehearse else Sizes()
        self.num_tokens = self.sizes.new_tokens
        self.deterministic = arguments.deterministic
        self.mode = "" if self.deterministic else ", deterministic=False"  # for the rows' text
        self.bar, self.cpu = bar, cpu
        self.options, self.of = {}, ""
        self._stack = ExitStack()

    def __enter__(self):
        self.kept = self._stack.enter_context(Kept())
        self._folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        if not self.rehearsal:
            from twinkle.hub.models import cache_directory

            self._folder = str(cache_directory() / "shapes")
            self.try_device()
        with Worker("system_limits", self.threads) as worker:
            trial = TINY_TRIAL if self.rehearsal else TRIAL
            self.machine = limits.measure(worker, self, trial)
        return self

    def __exit__(self, *_):
        self._stack.close()

    def try_device(self):
        """Reports here what the build or the driver lacks, before gigabytes are written."""
        model = shapes.written(self._folder, shapes.TINY["head"])
        with Worker("system_twinkle", self.threads) as worker:
            worker.ask("load", model=model, device=self.device)

    def rows(self, only):
        """Rows of the named questions, as they are measured."""
        for name, asked in questions.PLAN.items():
            wanted = [ask for id_, ask in asked if id_ in only and name in self.shapes]
            if wanted:
                self.use(name)
            for ask in wanted:
                for row in ask(self):
                    yield self.marked(row)

    def marked(self, row):
        """A row of a rehearsal says so wherever it is shown."""
        mark = {"what": "rehearsal: " + row["what"]} if self.rehearsal else {}
        return row | mark | {"rehearsal": self.rehearsal}

    def use(self, name):
        """Writes the shape's model, if it is not there, and makes it the one that is asked."""
        config = (shapes.TINY if self.rehearsal else shapes.REAL)[name]
        self.kept.close()
        self.of = f", {shapes.NAMES[name]}{self.mode}"
        self.model = shapes.written(self._folder, config, self.device, SEED)
        self.shape = limits.Shape.of(self.model)
        self.inputs = RandomInputs(self.shape.vocab, self.sizes.context, SEED)
        decodes = name in ("0.6B", "4B", "8B")
        self.options = {
            "deterministic": self.deterministic,
            "activation_bytes": self.activation_bytes(),
            "token_budget": self.sizes.long,
            "kv_tokens": self.kv_tokens() if decodes else self.sizes.long,
            "max_sequences": self.sizes.at_a_time,
            "prefill_tokens": self.sizes.long,
        }

    def memory_bytes(self):
        """The device's; for a rehearsal as much as may be needed."""
        if self.rehearsal or self.device == "cpu":
            return 256 << 30
        import torch

        return torch.cuda.get_device_properties(0).total_memory

    def activation_bytes(self):
        """Twice those of the largest step, for its recordings; the peer needs room beside them."""
        return min(32 << 30, self.memory_bytes() // 4)

    def kv_tokens(self):
        """19 GB of 4B's; 80 GB hold the peer beside G10's 64 sequences alone."""
        return self.sizes.kv_tokens if self.memory_bytes() > 100 << 30 else 73728

    def alone(self, **options):
        """The same run with a process for each worker, and these options beside its own."""
        self.kept.close()
        other = copy.copy(self)
        other.kept, other.options = None, self.options | options
        return other

    def within(self, rounds):
        """The same run with at most so many rounds."""
        other = copy.copy(self)
        other.rounds = min(rounds, self.rounds)
        other.attempts = min(2 * rounds, self.attempts)
        other.patience = replace(self.patience, seconds=2 * self.patience.seconds)
        return other

    def progress(self, name):
        return self.bar.progress(name, self.patience)

    def machine_fields(self):
        device = {"device": self.device_name} if self.device_name else {}
        return device | {"cpu": self.cpu, "threads": self.threads, "machine": self.machine.note}

    def utilization(self, row):
        """[the share of the data sheet's rate that the products of the row's limit have], a note.
        []: the device is none that is known."""
        for part, nominal in NOMINAL.items():
            if part in (self.device_name or ""):
                share = row["share_of_limit"] * self.machine.gemm_gflops / 1e3 / nominal
                return [f"{share:.1%} of the data sheet's {nominal:.0f} TFLOP/s"]
        return []
