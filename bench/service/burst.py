"""The burst of S6, by the real SDK: python bench/service/burst.py URL KEY FORWARD_BACKWARDS SAMPLES

Ends with 0 when every one has its result, and prints how many have.
"""

import os
import sys

NUM_DATA, NUM_TOKENS = 200, 1031  # 16 bytes a token: 3.3 MB


def main(url, key, num_passes, num_samples):
    os.environ["TINKER_TELEMETRY"] = "0"
    import tinker
    from tinker import types

    service = tinker.ServiceClient(base_url=url, api_key=key)
    trainer = service.create_lora_training_client("null", rank=8).result()
    sampler = service.create_sampling_client(base_model="null").result()
    inputs = {"target_tokens": [1] * NUM_TOKENS, "weights": [1.0] * NUM_TOKENS}
    tokens = types.ModelInput.from_ints([1] * NUM_TOKENS)
    data = [types.Datum(model_input=tokens, loss_fn_inputs=inputs)] * NUM_DATA
    params = types.SamplingParams(max_tokens=3)
    futures = [
        sampler.sample(
            prompt=types.ModelInput.from_ints([1]), num_samples=1, sampling_params=params
        )
        for _ in range(num_samples)
    ]
    futures += [trainer.forward_backward(data, "cross_entropy") for _ in range(num_passes)]
    results = [future.result() for future in futures]
    print(len(results))


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
