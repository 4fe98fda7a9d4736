"""P1: what a script's classes cost, compared with the raw engine. R1c: a loop of GRPO, compared
with TRL's trainer and transformers' generate."""

import tempfile
from contextlib import ExitStack

import inputs
from foreign import warmed_rounds
from limits import decoding_tokens_s, training_gflop
from rows import make_row
from training import LENGTH, SIZE, foreign_of
from worker import with_model

RANK, LEARNING_RATE = 8, 1e-4
QUESTIONS, GROUP, NUM_TOKENS = 4, 8, 128
STEPS = 3  # a sample has so many, of about a second each


def rates(rounds, system):
    return [round_[system]["tokens"] / round_[system]["wall_s"] for round_ in rounds]


def p1(run):
    with ExitStack() as stack:
        raw = with_model(stack, run, "system_twinkle")
        script = with_model(stack, run, "system_twinkle_script")
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        raw.ask("start_training", adapter=folder, rank=RANK, make=True)
        script.ask("start", lr=LEARNING_RATE)
        batches = run.inputs.full_batches(4, SIZE, LENGTH)

        def both(call, **arguments):
            return {
                "ours": script.ask(call, **arguments),
                "peer": raw.ask(call, **arguments),
            }

        def trained(i):
            taken = [
                {
                    "ours": script.ask("train", **batches[(i + k) % len(batches)]),
                    "peer": raw.ask("train", lr=LEARNING_RATE, **batches[(i + k) % len(batches)]),
                }
                for k in range(STEPS)
            ]
            return {
                system: {
                    "wall_s": sum(step[system]["wall_s"] for step in taken),
                    "foreign": max(step[system]["foreign"] for step in taken),
                    "tokens": STEPS * SIZE * LENGTH,
                }
                for system in ("ours", "peer")
            }

        prompts = run.inputs.prompts(1)
        raw.ask("start_decoding", num_sequences=1)

        def replied(_):
            return both("reply", prompts=prompts, num_tokens=4 * run.num_tokens)

        lengths = [LENGTH] * SIZE
        limits = [
            run.machine.gemm_gflops
            * sum(lengths)
            / training_gflop(run.shape, RANK, lengths, sum(lengths)),
            decoding_tokens_s(run.shape, run.machine, 1),
        ]
        names = f"LoRA training as in C1, {SIZE} x {LENGTH} tokens", "a reply, 1 sequence"
        for what, take, limit in zip(names, (trained, replied), limits, strict=True):
            rounds, noisy = warmed_rounds(run, "P1", take)
            yield make_row(
                "P1", f"{what}, through TransformersModel and TorchSampler", "the raw engine",
                {system: rates(rounds, system) for system in ("ours", "peer")}, limit,
                unit="tokens/s", noisy=noisy, valid=True, foreign=foreign_of(rounds),
                notes=[], **run.machine_fields(),
            )  # fmt: skip


def step_limit(run, num_tokens):
    """New tokens a second of a step whose sampling and training are both at the machine's limit.
    They take turns on the same cores, so their times add up."""
    prompts = run.inputs.prompts(QUESTIONS)
    sequences = QUESTIONS * GROUP
    new = sequences * num_tokens
    lengths = [len(prompt) + num_tokens for prompt in prompts for _ in range(GROUP)]
    sampling_s = new / decoding_tokens_s(run.shape, run.machine, sequences)
    training_s = training_gflop(run.shape, RANK, lengths, new) / run.machine.gemm_gflops
    return new / (sampling_s + training_s)


def r1c(run):
    num_tokens = 16 if run.num_tokens < 64 else NUM_TOKENS
    questions = [row["question"] for row in inputs.rows(QUESTIONS)]
    with ExitStack() as stack:
        workers = {
            "ours": with_model(stack, run, "system_twinkle_script"),
            "peer": with_model(stack, run, "system_trl"),
        }
        workers["ours"].ask("start", lr=1e-5, loss="GRPOLoss")
        asked = {"questions": questions, "group": GROUP, "num_tokens": num_tokens}
        workers["peer"].ask("start", lr=1e-5, **asked)

        def take(_):
            return {
                "ours": workers["ours"].ask("grpo_step", **asked),
                "peer": workers["peer"].ask("grpo_step"),
            }

        rounds, noisy = warmed_rounds(run, "R1c", take)
        seconds = {s: sum(r[s]["wall_s"] for r in rounds) / len(rounds) for s in workers}
        yield make_row(
            "R1c", f"a step of GRPO, LoRA of rank {RANK}, {QUESTIONS} questions of GSM8K x {GROUP} "
            f"replies of at most {num_tokens} tokens: new tokens",
            workers["peer"].ask("name"), {s: rates(rounds, s) for s in workers},
            step_limit(run, num_tokens), unit="tokens/s", noisy=noisy, valid=True,
            foreign=foreign_of(rounds),
            notes=[f"a step takes {seconds['ours']:.1f} s, the peer's {seconds['peer']:.1f} s"],
            **run.machine_fields(),
        )  # fmt: skip
