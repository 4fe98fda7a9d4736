"""llama.cpp as a worker: its own batch interface, all sequences in one llama_decode per token.

The model is the package's GGUF file turned into bfloat16, the very values that the others load.
"""

import ctypes
import os
from pathlib import Path

import llama_cpp as llama
import numpy as np
from foreign import Meter

BF16 = 32  # LLAMA_FTYPE_MOSTLY_BF16
CONTEXT_PER_SEQUENCE = 512


@llama.llama_log_callback
def silent(_level, _text, _user):
    """llama.cpp's log goes nowhere."""


class System:
    def load(self, gguf, bf16_gguf):
        llama.llama_log_set(silent, None)
        llama.llama_backend_init()
        self.threads = int(os.environ["OMP_NUM_THREADS"])
        if not Path(bf16_gguf).exists():
            self._convert(gguf, bf16_gguf)
        options = llama.llama_model_default_params()
        self.model = llama.llama_model_load_from_file(bf16_gguf.encode(), options)
        if not self.model:
            raise ValueError(f"llama.cpp cannot load {bf16_gguf}")
        self.vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        self.context = None

    def name(self):
        return f"llama.cpp (llama-cpp-python {llama.__version__})"

    def _convert(self, gguf, bf16_gguf):
        options = llama.llama_model_quantize_default_params()
        options.ftype, options.allow_requantize, options.nthread = BF16, True, self.threads
        partial = bf16_gguf + ".partial"
        if llama.llama_model_quantize(gguf.encode(), partial.encode(), ctypes.byref(options)):
            raise ValueError(f"llama.cpp cannot convert {gguf} to bfloat16")
        Path(partial).rename(bf16_gguf)

    def start_decoding(self, num_sequences):
        if self.context is not None:
            llama.llama_batch_free(self.batch)
            llama.llama_free(self.context)
        options = llama.llama_context_default_params()
        options.n_ctx = CONTEXT_PER_SEQUENCE * num_sequences
        options.n_batch, options.n_ubatch = options.n_ctx, 512
        options.n_seq_max = num_sequences
        options.n_threads = options.n_threads_batch = self.threads
        self.context = llama.llama_init_from_model(self.model, options)
        self.batch = llama.llama_batch_init(options.n_ctx, 0, 1)

    def prefill(self, prompt):
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)
        last = len(prompt) - 1
        entries = [(token, position, 0, position == last) for position, token in enumerate(prompt)]
        with Meter() as meter:
            tokens = self._run(entries, [last])
        return {"wall_s": meter.wall_s, "foreign": meter.foreign, "tokens": [tokens]}

    def decode(self, prompts, num_tokens):
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)
        entries, last = [], []
        for sequence, prompt in enumerate(prompts):
            for position, token in enumerate(prompt):
                entries.append((token, position, sequence, position == len(prompt) - 1))
            last.append(len(entries) - 1)
        tokens = [[token] for token in self._run(entries, last)]
        with Meter() as meter:
            for _ in range(num_tokens):
                entries = [
                    (reply[-1], len(prompts[sequence]) + len(reply) - 1, sequence, True)
                    for sequence, reply in enumerate(tokens)
                ]
                for reply, token in zip(
                    tokens, self._run(entries, range(len(entries))), strict=True
                ):
                    reply.append(token)
        return {"wall_s": meter.wall_s, "foreign": meter.foreign, "tokens": tokens}

    def _run(self, entries, wanted):
        """Greedy next tokens at the batch positions `wanted`."""
        batch = self.batch
        batch.n_tokens = len(entries)
        for i, (token, position, sequence, scored) in enumerate(entries):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, scored
        if llama.llama_decode(self.context, batch):
            raise ValueError("llama_decode failed")
        return [self._best(i) for i in wanted]

    def _best(self, i):
        logits = llama.llama_get_logits_ith(self.context, i)
        return int(np.ctypeslib.as_array(logits, shape=(self.vocab_size,)).argmax())
