"""torch's own work on a GPU, to decide by: products (speed, and whether a row's bits depend on
the number of rows), attention (speed, and whether a gradient's bits depend on the other sequences),
and small things (LoRA by library calls, the gap between a graph's nodes, copies to the host).

    python bench/gpu/probe.py [--only products,attention,small] [--modes "fp32 sums"] [--out FILE]
        [--rehearse]

--rehearse: tiny shapes on the CPU; the figures mean nothing."""

import argparse
import json
import os
import time
from pathlib import Path

import torch

aten = torch.ops.aten
SHAPES = {  # outputs, inputs
    "0.6B gate": (3072, 1024),
    "4B q": (4096, 2560),
    "4B k": (1024, 2560),
    "4B gate": (9728, 2560),
    "4B down": (2560, 9728),
    "4B head": (151936, 2560),
    "8B gate": (14336, 4096),
}
# allow_bf16_reduced_precision_reduction, and which library is preferred
MODES = {
    "default": ((True, True), "default"),
    "fp32 sums": ((False, True), "default"),
    "lt, no split": ((False, False), "cublaslt"),  # no other library can be told so
}


class Probe:
    def __init__(self, rehearse, modes):
        self.modes = modes
        self.device = "cpu" if rehearse else "cuda"
        self.small, self.rows = rehearse, []
        torch.manual_seed(0)

    def seconds(self, call):
        """The median of one call, as the device has it."""
        call()
        times, begin = [], time.perf_counter()
        seconds = 0 if self.small else 0.05
        while len(times) < 3 or (time.perf_counter() - begin < seconds and len(times) < 50):
            self.wait()
            start = time.perf_counter()
            call()
            self.wait()
            times.append(time.perf_counter() - start)
        return sorted(times)[len(times) // 2]

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def drawn(self, *shape):
        return torch.randn(*shape, device=self.device).to(torch.bfloat16)

    def add(self, what, **values):
        self.rows.append({"what": what, **values})
        shown = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
        print("|", what, "|", ", ".join(shown), flush=True)

    def attempt(self, what, call):
        """An operator that is not there, or refuses, is an answer, too."""
        try:
            call()
        except (RuntimeError, AttributeError, NotImplementedError, IndexError) as error:
            self.add(what, failed=str(error).splitlines()[0][:150])


def products(probe):
    for mode in probe.modes:
        reduction, library = MODES[mode]
        if probe.device == "cuda":
            torch.backends.cuda.preferred_blas_library(library)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = reduction
        for name, shape in list(SHAPES.items())[: 2 if probe.small else None]:
            outputs, inputs = (96, 64) if probe.small else shape
            w = probe.drawn(outputs, inputs)
            product(probe, f"{name}, {mode}", w)
            product(probe, f"{name} transposed, {mode}", w.t().contiguous().t())


def product(probe, what, w):
    most = 64 if probe.small else 8192
    x = probe.drawn(most, w.shape[1])
    whole = x @ w.t()
    sizes = [2**i for i in range(most.bit_length())]
    alike = [n for n in sizes if torch.equal(x[:n] @ w.t(), whole[:n])]
    took = {n: probe.seconds(lambda n=n: x[:n] @ w.t()) for n in (1, 16, 64, most // 2, most)}
    speeds = {f"TFLOPs at {n}": 2e-12 * n * w.numel() / s for n, s in took.items()}
    probe.add(what, like_the_largest=alike, **speeds, GBs_at_1=2e-9 * w.numel() / took[1])


def batch_of(probe, lengths, heads, keys, dim):
    total = sum(lengths)
    q, g = (probe.drawn(total, heads, dim) for _ in range(2))
    k, v = (probe.drawn(total, keys, dim) for _ in range(2))
    ends = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    return q, k, v, g, torch.tensor(ends, dtype=torch.int32, device=probe.device), max(lengths)


def flash(q, k, v, g, ends, longest):
    scale = q.shape[-1] ** -0.5
    if q.device.type == "cpu":  # to rehearse with
        out = torch.ones_like(q) * v.float().mean().to(q.dtype)
        return lambda: out, lambda: (g * scale, k, v)
    forward = lambda: aten._flash_attention_forward(  # noqa: E731
        q, k, v, ends, ends, longest, longest, 0.0, True, False, scale=scale
    )
    out, lse, random, unused, _ = forward()
    backward = lambda: aten._flash_attention_backward(  # noqa: E731
        g, q, k, v, out, lse, ends, ends, longest, longest, 0.0, True, random, unused, scale=scale
    )
    return forward, backward


def cudnn(q, k, v, g, ends, longest):
    """One sequence alone, as it takes no others (its varlen form fails in torch 2.11)."""
    if q.device.type == "cpu":
        raise RuntimeError("cuDNN's attention needs a GPU")
    scale = q.shape[-1] ** -0.5
    q, k, v, g = (x[:longest].unsqueeze(0).transpose(1, 2) for x in (q, k, v, g))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    q, k, v = (x.detach().contiguous().requires_grad_() for x in (q, k, v))
    forward = lambda: aten._scaled_dot_product_cudnn_attention(  # noqa: E731
        q, k, v, None, True, 0.0, True, False, scale=scale
    )[0]
    out = forward()
    backward = lambda: torch.autograd.grad(out, (q, k, v), g, retain_graph=True)  # noqa: E731
    return forward, backward


def attention(probe):
    long = 64 if probe.small else 4096
    for name, kernel in (("flash", flash), ("cudnn", cudnn)):
        for fixed in (True, False):
            torch.use_deterministic_algorithms(fixed, warn_only=True)
            for heads, keys, dim in ((32, 8, 128), (9, 3, 64)):
                what = f"{name}, {heads}:{keys} heads of {dim}, deterministic {fixed}"
                probe.attempt(
                    what, lambda n=what, k=kernel, s=(heads, keys, dim): one(probe, n, k, long, s)
                )
    torch.use_deterministic_algorithms(False)


def one(probe, what, kernel, long, shape):
    heads, _, dim = shape
    begin = time.perf_counter()
    forward, backward = kernel(*batch_of(probe, [long], *shape))
    probe.wait()
    first = time.perf_counter() - begin
    work = 2e-12 * long * long * heads * dim  # causal: half of 4
    speeds = {
        "first_ms": 1e3 * first,
        "forward": work / probe.seconds(forward),
        "backward": 2.5 * work / probe.seconds(backward),
    }
    # dq of a sequence alone, and the first among others.
    length = 17 if probe.small else 300
    among = {}
    torch.manual_seed(1)
    q, k, v, g, _, _ = batch_of(probe, [length] * 8, *shape)
    want = None
    for count in (1, 2, 3, 5, 8):
        ends = torch.arange(count + 1, dtype=torch.int32, device=probe.device) * length
        some = (x[: count * length] for x in (q, k, v, g))
        got = [x[:length] for x in kernel(*some, ends, length)[1]()[:3]]
        want = want or got
        among[count] = all(map(torch.equal, got, want))
    probe.add(what, like_alone=among, **speeds)


def small(probe):
    tokens, inputs, outputs, rank = (32, 64, 96, 16) if probe.small else (4096, 2560, 9728, 16)
    x, y = probe.drawn(tokens, inputs), probe.drawn(tokens, outputs)
    a, b = probe.drawn(inputs, rank), probe.drawn(rank, outputs)
    probe.add(
        "LoRA of one linear by addmm",
        us_per_token=1e6 * probe.seconds(lambda: torch.addmm(y, x @ a, b)) / tokens,
    )
    ends = torch.arange(1, 9, dtype=torch.int32, device=probe.device) * (tokens // 8)
    many = a.repeat(8, 1, 1)
    probe.attempt(
        "LoRA's first product of 8 adapters by _grouped_mm",
        lambda: probe.add(
            "LoRA's first product of 8 adapters by _grouped_mm",
            us_per_token=1e6 * probe.seconds(lambda: aten._grouped_mm(x, many, ends)) / tokens,
        ),
    )
    for mib in (0.3, 19, 65):
        there = torch.zeros(int(mib * 2**20), dtype=torch.uint8, device=probe.device)
        for pinned in (False, True) if probe.device == "cuda" else (False,):
            host = torch.empty(there.shape, dtype=torch.uint8, pin_memory=pinned)
            took = probe.seconds(lambda h=host, t=there: h.copy_(t))
            probe.add(f"{mib} MiB to the host, pinned {pinned}", ms=1e3 * took)
    if probe.device != "cuda":
        return
    probe.add("a wait for nothing", us=1e6 * probe.seconds(torch.cuda.synchronize))
    z, graph = torch.zeros(64, device="cuda"), torch.cuda.CUDAGraph()
    z.add_(1)
    with torch.cuda.graph(graph):
        for _ in range(500):
            z.add_(1)
    probe.add("a node of a graph", us=1e6 * probe.seconds(graph.replay) / 500)


PARTS = {"products": products, "attention": attention, "small": small}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--modes", default=";".join(MODES), help="of products, between semicolons")
    parser.add_argument("--out", type=Path, default=Path("outputs/gpu/probe.json"))
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args(argv)
    probe = Probe(arguments.rehearse, arguments.modes.split(";"))
    for name in arguments.only.split(","):
        PARTS[name](probe)
        # As it comes: what has been measured stays when time runs out.
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        facts = {"torch": torch.__version__, "workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG")}
        arguments.out.write_text(json.dumps({**facts, "rows": probe.rows}, indent=1))


if __name__ == "__main__":
    main()
