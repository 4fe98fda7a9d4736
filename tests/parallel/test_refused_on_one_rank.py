"""Wrong arguments of one rank alone are refused on all ranks; then all go on, with the bits of one
process."""

import pytest
from parallel.processes import alone, together


@pytest.fixture(scope="module")
def told(tiny_llama_dir, tmp_path_factory):
    """(of one process, to which nothing wrong is given, of each of two)."""
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    return alone("apart.py", tiny_llama_dir, one), together(2, "apart.py", tiny_llama_dir, two)


@pytest.mark.parametrize(
    ("case", "made", "why"),
    [
        ("a batch", "a batch", "model: input_ids of inputs[1] has shape [2, 1]"),
        ("a forward", "a batch", "model: input_ids of inputs[1] has shape [2, 1]"),
        ("drawn of its own engine", "its prompts", "sampler: prompt 0 has 600 tokens"),
        ("greedy of the model's engine", "its prompts", "sampler: prompt 0 has 600 tokens"),
        ("drawn of the model's engine, by path", "its prompts", "sampler: prompt 0 has 600 tokens"),
        ("a tenant's batch", "its forward_backward", "model: input_ids of inputs[1] has shape"),
        ("a tenant's rows", "its forward", "model: input_ids of inputs[1] has shape"),
        ("a tenant's prompts", "its prompts", "engine: prompt 0 has 600 tokens"),
        ("a batch's name", "a batch", "loss: CrossEntropyLoss"),
        ("a forward's name", "a batch", "model: forward_only"),
        ("a step's options", "its step", ""),
        ("a clip", "its clip_grad_and_step", "model: max_grad_norm is -1.0"),
        ("a save", "its save", "model: name is '../last'"),
        ("a tenant", "its tenant", "engine: weight is 0.0"),
        ("a tenant's step", "its step", ""),
        ("a tenant's save", "its save", "engine: directory"),
        ("a name, drawn of its own engine", "its prompts", "sampler: SamplingParams: unknown"),
        ("a name, greedy of the model's engine", "its prompts", "sampler: SamplingParams: unkn"),
    ],
)
def test_what_one_rank_refuses_is_told_to_the_others_by_its_name(case, made, why, told):
    _, (first, last) = told
    assert last[case].startswith(f"InvalidError: {why}")
    assert first[case].startswith(
        f"InvalidError: infra: rank 1 could not make {made}: {last[case]}"
    )


@pytest.mark.parametrize(
    ("case", "made", "why"),
    [
        ("an adapter", "its adapter", "NotFoundError: hub: '/nowhere'"),
        ("no model", "its engine", "NotFoundError: hub: '/nowhere'"),
        ("a batch's adapter", "a batch", "InvalidError: model: there is no adapter 'other'"),
        ("a loss's adapter", "its loss", "InvalidError: model: there is no adapter 'other'"),
        ("a load", "its load", "NotFoundError: "),
        ("whose, drawn of its own engine", "its prompts", "NotFoundError: hub: '/nowhere'"),
        ("whose, drawn of the model's engine", "its prompts", "InvalidError: model: there is no"),
        ("whose, greedy of the model's engine", "its prompts", "InvalidError: model: there is no"),
        (
            "whose, greedy of the model's engine, by path",
            "its prompts",
            "NotFoundError: hub: '/nowhere'",
        ),
    ],
)
def test_what_one_rank_alone_does_not_have_is_told_to_the_others_by_its_name(case, made, why, told):
    _, (first, last) = told
    assert last[case].startswith(why)
    assert first[case].startswith(
        f"InvalidError: infra: rank 1 could not make {made}: {last[case]}"
    )


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("arguments of one", "the loss's arguments have other names on other ranks"),
        ("a later number", "the loss's arguments have other names on other ranks"),
        ("a number", "scale of the loss's arguments is 1.0 on rank 0 and 2.0 on rank 1"),
        ("a number and a list", "is 2.0 on rank 0 and [1.0, 2.0, 3.0, 4.0, 5.0] on rank 1"),
        ("two numbers", "coef of the loss's arguments is [0.5, 2.0], which may have an entry"),
        ("other numbers", "is [0.5, 2.0] on rank 0 and [0.5, 3.0] on rank 1, it must be the same"),
        ("other arrays", "coef of the loss's arguments is array([0.5, 2. , 1. ]) on rank 0 and"),
        ("the same at first", "correct of the loss's arguments is [1.0, 0.0], which may have"),
        ("longer than rows, and not named", "correct of the loss's arguments is [1.0, 0.0, 1.0],"),
        ("more than rows", "correct of the loss's arguments has 3 and 3 entries for 2 and 2 rows"),
        ("named, and more than rows", "coef of the loss's arguments has 3 and 3 entries for 2 and"),
        ("logits", "return_logits: logits of 3 x 420000 positions"),
    ],
)
def test_what_ranks_must_have_alike_is_refused_on_all(case, text, told):
    _, several = told
    for of_rank in several:
        assert of_rank[case].startswith("InvalidError: model: ") and text in of_rank[case]


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("a precision", "mixed_precision is 'bf16' on rank 0 and 'no' on rank 1"),
        ("gathered_bytes", "gathered_bytes is 0 on rank 0 and 1073741824 on rank 1"),
        ("a mesh", "device_mesh is {'dp': 2} on rank 0 and {'fsdp': 2} on rank 1"),
        ("weights", "a digest of the model's config.json, indexes and weights is '"),
        ("ends of texts", "a digest of the model's generation_config.json and tokenizer is '"),
        ("arithmetic", "the kind of matrix products (bf16_products) is '"),
        ("instructions", "the instructions of the CPU that torch uses is '"),
        ("torch", "torch's version is '"),
        ("twinkle", "twinkle's version is '"),
    ],
)
def test_engines_that_are_not_alike_are_refused_before_their_ranks_meet(case, text, told):
    _, several = told
    for of_rank in several:
        assert of_rank[case].startswith(f"InvalidError: engine: {text}"), of_rank[case]


@pytest.mark.parametrize("case", ["a load of other values", "an adapter of other values"])
def test_a_folder_that_is_another_on_one_rank_is_refused_on_all(case, told):
    _, several = told
    text = "InvalidError: engine: /proc/self/cwd/last holds other values on rank 1 than on rank 0"
    assert all(of_rank[case].startswith(text) for of_rank in several), several[0][case]


def test_arguments_that_cannot_be_sent_are_told_too(told):
    _, (first, last) = told
    assert "infra: rank 1 could not make a batch: " in first["what can't be sent"]
    assert "pickle" in last["what can't be sent"] and "pickle" in first["what can't be sent"]


def test_the_ranks_go_on_with_the_bits_of_one_process(told):
    one, several = told
    for of_rank in several:
        assert of_rank["losses"] == one["losses"] and of_rank["norm"] == one["norm"]
    for name, tokens in one["tokens"].items():
        assert [t for of_rank in several for t in of_rank["tokens"][name]] == tokens, name


def test_an_adapters_folder_gives_the_samples_of_the_adapter(told):
    one, _ = told
    way = "greedy of the model's engine"
    assert one["tokens"][f"{way}, by path"] == one["tokens"][way]
