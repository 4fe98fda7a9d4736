"""The optimizer's steps of a model: what happens to the gradients that its batches have added."""

from twinkle import checks
from twinkle.engine.arguments import clip_arguments
from twinkle.model.adapters import Adapters
from twinkle.model.arguments import require_backward
from twinkle.model.group import check_accumulation
from twinkle.model.remote import of_all


class Steps(Adapters):
    """The part of TransformersModel that clips, steps and forgets gradients."""

    @of_all
    def clip_grad_norm(self, max_grad_norm=1.0, norm_type=2, adapter_name=None):
        """Divides the accumulated gradients by the token count and clips them to max_grad_norm (not
        at all by 0 and inf); their norm before. step or zero_grad comes next: until then a
        forward_backward is refused with a ConflictError.

        Like step, zero_grad and lr_step it does nothing between accumulation boundaries (None).
        InvalidError: a negative limit. ConflictError: nothing is accumulated.
        """
        with self._ranks.alike("its clip_grad_norm"):
            group = self._group(adapter_name)
            limits = clip_arguments("model", max_grad_norm, norm_type)
        if group.just_stepped or not group.at_boundary:
            return None
        group.run(
            self.engine.clip_grad_norm,
            lambda result: {"loop": group.loop.with_clip(result["grad_norm"])},
            tenant=self._tenant(group),
            **limits,
        )
        return group.grad_norm

    @of_all
    def step(self, optim_params=None, adapter_name=None):
        """One optimizer step at an accumulation boundary, nothing between them.

        optim_params: {lr, weight_decay, eps, betas, ...} from now on; lr only without a schedule.
        InvalidError: no backward since the last step, or options that the optimizer refuses.
        """
        with self._ranks.alike("its step"):
            group = self._group(adapter_name)
            require_backward(group)
            if group.at_boundary:
                optim_params = checks.mapping("model: optim_params", optim_params, none=True)
                group.loop.step(dict(optim_params))
        self._step(group, optim_params)

    def _step(self, group, optim_params, limits=None, schedule=0):
        """Whether there was one. limits: as of clip_arguments; None: it does not clip. schedule:
        steps of the schedule that are counted with it."""
        if not group.at_boundary:
            return False
        given = dict(optim_params)
        request, lr = group.loop.step(given)
        group.run(
            self.engine.step,
            lambda result: {"loop": group.loop.with_step(given, result["grad_norm"], schedule)},
            tenant=self._tenant(group),
            **request,
            **(limits or {}),
        )
        for metric in group.train.metrics:
            metric.on_step(grad_norm=group.grad_norm, lr=lr, iters=group.iters)
        return True

    @of_all
    def zero_grad(self, adapter_name=None):
        """Forgets the accumulated gradients at a boundary; a step has done so already."""
        with self._ranks.alike("its zero_grad"):
            group = self._group(adapter_name)
        between = group.accumulated and not group.at_boundary
        if not (between or group.just_stepped or group.tenant is None):
            # Also with nothing accumulated here: gradients may have come with a loaded optimizer.
            group.run(
                self.engine.zero_grad,
                lambda _: {"loop": group.loop.without_gradients()},
                tenant=group.tenant,
            )

    @of_all
    def lr_step(self, adapter_name=None):
        """Moves the schedule on by one, after a step."""
        group = self._group(adapter_name)
        group.loop = group.loop.with_lr_step()

    @of_all
    def clip_grad_and_step(
        self,
        max_grad_norm=1.0,
        norm_type=2,
        gradient_accumulation_steps=None,
        adapter_name=None,
    ):
        """clip_grad_norm, step, zero_grad and lr_step in one. Returns the norm before clipping, or
        None between boundaries. max_grad_norm: 0, None and inf do not clip.
        gradient_accumulation_steps: from now on. InvalidError: no backward since the last step."""
        with self._ranks.alike("its clip_grad_and_step"):
            group = self._group(adapter_name)
            max_grad_norm = 0.0 if max_grad_norm is None else max_grad_norm
            limits = clip_arguments("model", max_grad_norm, norm_type)
            check_accumulation(gradient_accumulation_steps, none=True)
            require_backward(group)
        group.set_gradient_accumulation_steps(gradient_accumulation_steps)
        stepped = self._step(group, {}, limits, schedule=1)
        return group.grad_norm if stepped else None
