"""The tokens that a model would choose: what metrics of accuracy compare with the labels."""

import numpy as np

NOTHING = -1  # where the label is ignored
# Scores the prompt; what follows its last token is drawn only where that has a label.
_PARAMS = {
    "num_samples": 1, "temperature": 0.0, "prompt_logprobs": True, "top_prompt_logprobs": 1,
    "ignore_eos": True,
}  # fmt: skip


def predictions(engine, tenant, together):
    """[B, longest] int64 tensor of the likeliest next token at every position of all ranks'
    sequences that has a label, -1 elsewhere. It costs a pass of its own, without dropout: of a
    training pass the engine keeps the log-probabilities of the labels alone."""
    batch = together.own
    wanted = [sequence.get("labels") for sequence in batch.sequences]
    chosen = [np.full(len(s["input_ids"]), NOTHING) for s in batch.sequences]
    scored = [i for i, labels in enumerate(wanted) if labels is not None and (labels != -100).any()]
    if together.whole.num_labels:  # all ranks ask, or none
        results = engine.sample(
            tenant=tenant,
            prompts=[np.asarray(batch.sequences[i]["input_ids"], np.int64) for i in scored],
            params=[{"max_tokens": int(wanted[i][-1] != -100), **_PARAMS} for i in scored],
        ).result()
        for i, (sample, *_) in zip(scored, results, strict=True):
            tokens = [top[0][0] for top in sample["top_prompt_logprobs"]] + sample["tokens"]
            tokens = np.array(tokens + [NOTHING] * (len(chosen[i]) - len(tokens)))
            chosen[i] = np.where(wanted[i] != -100, tokens, NOTHING)
    return together.whole.wide(together.chosen(chosen), NOTHING)
