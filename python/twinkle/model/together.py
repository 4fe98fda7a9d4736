"""A batch of all data ranks. Losses and metrics in Python see all of it on every rank, so that
their numbers are those of one process, whatever they add up, and in which order."""

from twinkle.core import core
from twinkle.loss.base import row_arguments
from twinkle.remote.rows import cut_arguments

_SCORES = ("logps", "entropies", "logits", "embeddings", "label_logits")


class Together:
    """own: this process's Batch; whole: that of all ranks; rows: where own lies in whole; given: a
    loss's arguments for whole; group: the Group that has the loss; task: what is asked for."""

    # A forward sets its outputs of all sequences, and disable_lora where the base model scored
    # them; calculate_loss sets the loss that it took, and this one's arguments.
    outputs = loss = loss_kwargs = None
    disable_lora = False

    def __init__(self, ranks, make):
        """make: a function that gives group, task, own, and a loss's arguments for it, a dict, or
        None: they come later. InvalidError: make() has raised on a rank, and as joined."""
        self._ranks, self.rows, self.is_alone = ranks, slice(None), ranks.size == 1

        def mine():
            group, task, own, given = make()
            return (group, task, own, given), (own.features, given)

        own, of_ranks = ranks.agree("a batch", mine)
        self.group, self.task, self.own, self.given = own
        self.whole = self.own
        if self.is_alone:
            return
        parts, of_loss = zip(*of_ranks, strict=True)
        self._counts = [len(part) for part in parts]
        begin = sum(self._counts[: ranks.rank])
        self.whole = core().Batch([feature for part in parts for feature in part])
        self.rows = slice(begin, begin + len(self.own))
        if self.given is not None:
            self.given = self.joined(of_loss, self.group)

    def scores(self, result):
        """The engine's result for own, with the outputs of all sequences."""
        names = [name for name in _SCORES if name in result]
        parts = self._ranks.gather("its scores", [result[name] for name in names])
        of_all = [[row for rows in lists for row in rows] for lists in zip(*parts, strict=True)]
        return {**result, **dict(zip(names, of_all, strict=True))}

    def joined(self, of_ranks, group):
        """The arguments of the group's loss for all sequences, from those that each rank has given.

        Arguments with an entry for each sequence of a rank's, or each pair of them, follow one
        another: those that the loss's row_arguments name, without it those of Twinkle's losses,
        and, where the call was cut, what was cut of it. All others are numbers, texts or arrays
        that are the same on all ranks, or objects of which each rank has its own. InvalidError:
        they are not; one with a length that nobody names; ranks have given other names;
        row_arguments name what has another length."""
        if self.is_alone:
            return of_ranks[0]
        named = row_arguments(group.loss)
        return core().joined(of_ranks, self._ranks.rank, self._counts, named, cut_arguments())

    def predictions(self, engine, tenant):
        """[B, longest] int64 tensor of the likeliest next token at every position of all ranks'
        sequences that has a label, -1 elsewhere. It costs a pass of its own, without dropout: of a
        training pass the engine keeps the log-probabilities of the labels alone."""
        samples = []
        if self.whole.num_labels:  # all ranks ask, or none
            samples = engine.sample(tenant=tenant, **self.own.prompts()).result()
        parts = self._ranks.gather("its predictions", self.own.chosen(samples))
        return self.whole.wide([row for part in parts for row in part], -1)

    def model_output(self, scores, loss=None):
        """A ModelOutput of the engine's scores of all sequences: of what was asked for."""
        of_rows = self.whole.outputs(scores, self.task.of_values)
        return {"loss": loss, "num_tokens": self.whole.num_labels, **of_rows}

    def own_outputs(self, outputs, result):
        """The outputs of all ranks as one of them returns them: loss and num_tokens are of all,
        rows its own."""
        if self.is_alone:
            return dict(outputs)
        names = ("loss", "num_tokens", "aux_loss")
        of_all = {name: outputs[name] for name in names if name in outputs}
        return {**of_all, **self.own.outputs(result, self.task.of_values)}
