"""Arguments of torch.optim with which it steps as the engine does."""


def decay_groups(model):
    """The weights that learn: matrices decay as the optimizer's weight_decay says, norms and biases
    do not."""
    learning = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in learning if p.dim() > 1]},
        {"params": [p for p in learning if p.dim() == 1], "weight_decay": 0.0},
    ]
