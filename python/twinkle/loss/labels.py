"""The labels of a batch that a loss counts, and what a script gives for each of them: log-
probabilities of another model, advantages, a teacher's logits. B sequences, padded to L, N labels.
"""

from twinkle.core import core


def scored(inputs, reader, must=""):
    """Mask [B, L] bool of the labels that count: other than -100, attended to, of loss_scale 1.
    reader: who reads them, such as 'loss: GRPOLoss'. must: 'some', there are labels; 'pairs', the
    sequences are pairs, and each has labels. InvalidError: another loss_scale than 0 and 1, by
    which the reader weighs nothing; other labels than `must` says."""
    return core().scored_labels(inputs, reader, must)


def at_labels(name, given, inputs, mask, width=""):
    """[N] float64, or with a width, 'floats', 'logits' or 'integers', [N, K] float32 or int64: what
    `given` has for the labels of mask [B, L], in order.

    given: for each sequence one number, one entry for each of its labels that count, or one for
    each position of the sequence, padded or not; without a width an entry is a number, or the list
    of (token id, log p) that a sampled token has in SampledSequence.logprobs, with one K of them.
    InvalidError: another number of sequences or entries, what is no number, nan, inf, log
    probabilities of other tokens than the labels; of 'logits' -inf passes, a token of probability
    0, unless a label has nothing else.
    """
    return core().label_rows(name, given, inputs, mask, width)


def spread(name, given, inputs, mask):
    """[B, L] float64 of what at_labels gives, 0 elsewhere. InvalidError: as at_labels."""
    values = at_labels(name, given, inputs, mask)
    return values.new_zeros(mask.shape).masked_scatter_(mask, values)
