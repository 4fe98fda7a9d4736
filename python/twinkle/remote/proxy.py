"""Proxy: what the driver has of an object that lives in the workers of a group."""

import functools

from twinkle import checks
from twinkle.errors import InternalError
from twinkle.remote import held
from twinkle.remote.collect import join, ranks_of
from twinkle.remote.dispatch import shares
from twinkle.remote.how import ASKED_OF_ONE, ITERATED, how_of, remote_names
from twinkle.remote.lazy import LazyResult, destination
from twinkle.remote.messages import DROP, KEEP, SEND, Call


class Proxy:
    """Has the remote methods of its class; isinstance() takes it for one of them.

    _lazy_collect: whether results stay in the workers (None: as initialize() says);
    _ray_get_timeout: seconds that a call may take (None: any)."""

    def __init__(self, cls, group, mesh, lazy):
        self._class, self._key = cls, group.new_key()
        self.group, self.device_mesh = group, mesh
        self._lazy_collect, self._ray_get_timeout = None, None
        self._lazy_of_run = lazy
        group.forget_with(self, self._key, range(group.size))

    @property
    def __class__(self):
        return self._class

    @property
    def remote_group(self):
        """The name of the group that it lives in."""
        return self.group.name

    def __repr__(self):
        return f"<{self} in the {self.group.size} workers of group {self.group.name}>"

    def __str__(self):
        return self._class.__name__

    def __bool__(self):
        return True

    def __getattr__(self, name):
        how = how_of(self._class, name) if not name.startswith("__") else None
        if how is not None:
            return functools.partial(self._invoke, name, how)
        raise AttributeError(
            f"infra: {self} lives in the workers of group {self.group.name}, from where {name!r} "
            f"cannot be read; its remote methods are {', '.join(remote_names(self._class))}"
        )

    def __reduce__(self):
        """The object in the worker that it is sent to. InvalidError: that is of another group, or
        it is sent to nobody."""
        self.group.check_run(self, destination())
        if destination() is not self.group:
            checks.refuse(
                f"infra: an argument sent to group {destination().name}",
                self,
                "an object of the same group",
            )
        return held.own, (self._key,)

    # ---- calls

    def make(self, args, kwargs):
        """Makes the object in every worker."""
        calls = {
            rank: Call("make", self._key, self._class, args, kwargs, answer=DROP)
            for rank in range(self.group.size)
        }
        self.group.outcomes(self.group.send(calls, str(self)))

    def _invoke(self, name, how, /, *args, **kwargs):
        ranks = [0] if how.execute == "first" else range(self.group.size)
        given = shares(how, self, args, kwargs)

        def call(rank, **answer):
            share = given[rank]
            return Call(
                "call",
                self._key,
                name,
                share.args,
                share.kwargs,
                first_row=share.first_row,
                cut=share.cut,
                **answer,
            )

        return self._result(name, how, ranks, call)

    def _result(self, name, how, ranks, call):
        """Sends call(rank, answer=) to the ranks; their result, lazy or not."""
        group = self.group
        asked = ranks_of(how, group.size, self.device_mesh)
        lazy, timeout = self._is_lazy(how), self._timeout(how)
        key = group.new_key() if lazy else 0
        keep = KEEP if lazy else SEND
        calls = {
            rank: call(rank, answer=keep if rank in asked else DROP, keep_as=key) for rank in ranks
        }
        pending = group.send(calls, f"{self}.{name}")
        result = LazyResult(pending, key, asked, how.collect, timeout) if lazy else None
        if lazy and not how.sync and name != "__next__":
            return result
        outcomes = group.outcomes(pending, timeout)
        if any(outcome.stopped for outcome in outcomes.values()):
            self._stop(outcomes)
        return result if lazy else join(how.collect, [outcomes[rank].value for rank in asked])

    def _stop(self, outcomes):
        going = [rank for rank, outcome in outcomes.items() if not outcome.stopped]
        if going:
            raise InternalError(
                f"infra: the loop over {self} has ended in some workers, but not in {going}"
            )
        raise StopIteration

    def _is_lazy(self, how):
        for lazy in (how.lazy_collect, self._lazy_collect, self._lazy_of_run):
            if lazy is not None:
                return lazy
        return True

    def _timeout(self, how):
        return how.timeout if self._ray_get_timeout is None else self._ray_get_timeout

    # ---- what Python calls

    def __len__(self):
        return self._python("__len__")

    def __getitem__(self, index):
        return self._python("__getitem__", index)

    def __call__(self, /, *args, **kwargs):
        """Calls the object. TypeError: it has no remote method __call__."""
        how = how_of(self._class, "__call__")
        if how is None:
            raise TypeError(f"infra: {self} has no remote method __call__")
        return self._invoke("__call__", how, *args, **kwargs)

    def _python(self, name, *args):
        if not hasattr(self._class, name):
            raise TypeError(f"infra: {self} has no {name}")
        return self._invoke(name, how_of(self._class, name) or ASKED_OF_ONE, *args)

    def __iter__(self):
        """A loop that lives in the workers. TypeError: its class has none."""
        if not hasattr(self._class, "__iter__"):
            raise TypeError(f"infra: {self} cannot be iterated")
        return _Loop(self, how_of(self._class, "__iter__") or ITERATED)


class _Loop:
    """An iterator that lives in the workers."""

    def __init__(self, proxy, how):
        self._proxy, self._how, group = proxy, how, proxy.group
        self._key = group.new_key()
        calls = {
            rank: Call("iterate", proxy._key, answer=DROP, keep_as=self._key)
            for rank in range(group.size)
        }
        group.outcomes(group.send(calls, f"{proxy}.__iter__"))
        group.forget_with(self, self._key, range(group.size))

    def __iter__(self):
        return self

    def __next__(self):
        """The next item, of all workers. InternalError: only some have one."""

        def call(_, **answer):
            return Call("next", self._key, **answer)

        group = self._proxy.group
        return self._proxy._result("__next__", self._how, range(group.size), call)
