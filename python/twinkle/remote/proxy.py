"""Proxy: an object in the workers of a group, as the driver sees it."""

import functools

from twinkle import checks
from twinkle.errors import InternalError
from twinkle.remote.collect import ranks_of
from twinkle.remote.dispatch import Share, shares
from twinkle.remote.how import ITERATED, how_of, of_one, remote_names
from twinkle.remote.lazy import LazyResult
from twinkle.remote.messages import Handle


class Proxy(Handle):
    """Has the remote methods of its class; isinstance() takes it for one of them.

    _lazy_collect: whether results stay in the workers (None: as initialize() says);
    _ray_get_timeout: seconds that a call may take (None: any)."""

    def __init__(self, cls, group, mesh, lazy):
        self._class, self.group, self.device_mesh = cls, group, mesh
        self._key = group.new_key(self)
        self._lazy_collect, self._ray_get_timeout = None, None
        self._lazy_of_run = lazy

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

    def _ticket(self, group, refs):
        del refs
        self.group.check_run(self)
        if group is not self.group:
            what = f"infra: an argument sent to group {group.name}"
            checks.refuse(what, self, "an object of the same group")
        return "object", self._key

    # ---- calls

    def make(self, args, kwargs):
        """Makes the object in every worker."""
        _make(self, str(self), self._class, Share(args, kwargs))

    def _invoke(self, name, how, /, *args, **kwargs):
        ranks = [0] if how.execute == "first" else range(self.group.size)
        given = shares(how, self, args, kwargs)
        return self._result(self._key, name, how, {rank: given[rank] for rank in ranks})

    def _result(self, key, name, how, given):
        """Calls the method of the object behind the key with {rank: Share}; the result, lazy or
        not."""
        asked = ranks_of(how, self.device_mesh)
        pending = self.group.send(f"{self}.{name}", key, name, given, asked)
        timeout = how.timeout if self._ray_get_timeout is None else self._ray_get_timeout
        result = LazyResult(pending, asked, how.collect, timeout)
        if how.sync or name == "__next__":
            self._check_loop(pending.result(timeout))
        return result if self._is_lazy(how) else result()

    def _check_loop(self, outcomes):
        """StopIteration: a loop has ended in all workers. InternalError: in some."""
        going = [rank for rank, outcome in outcomes.items() if not outcome.stopped]
        if not going:
            raise StopIteration
        if len(going) < len(outcomes):
            raise InternalError(
                f"infra: the loop over {self} has ended in some workers, but not in {going}"
            )

    def _is_lazy(self, how):
        words = (how.lazy_collect, self._lazy_collect, self._lazy_of_run)
        return next((lazy for lazy in words if lazy is not None), True)

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
        return self._invoke(name, how_of(self._class, name) or of_one, *args)

    def __iter__(self):
        """A loop that lives in the workers. TypeError: its class has none."""
        if not hasattr(self._class, "__iter__"):
            raise TypeError(f"infra: {self} cannot be iterated")
        return _Loop(self, how_of(self._class, "__iter__") or ITERATED)


class _Loop:
    """An iterator that lives in the workers."""

    def __init__(self, proxy, how):
        self._proxy, self._how, self.group = proxy, how, proxy.group
        self._key = self.group.new_key(self)
        _make(self, f"{proxy}.__iter__", iter, Share((proxy,), {}))

    def __iter__(self):
        return self

    def __next__(self):
        """The next item, of all workers. InternalError: only some have one."""
        given = dict.fromkeys(range(self.group.size), Share((), {}))
        return self._proxy._result(self._key, "__next__", self._how, given)


def _make(owner, what, maker, share):
    """Keeps the maker's result in every worker, behind the owner's key."""
    group = owner.group
    group.send(what, owner._key, maker, dict.fromkeys(range(group.size), share)).result()
