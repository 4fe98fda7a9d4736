"""Proxy: an object in the workers of a group, as the driver sees it."""

import functools

from twinkle import checks
from twinkle.errors import InternalError
from twinkle.remote.collect import ranks_of
from twinkle.remote.dispatch import Share, shares
from twinkle.remote.how import ITERATED, how_of, of_one
from twinkle.remote.lazy import LazyResult
from twinkle.remote.messages import Handle


class Proxy(Handle):
    """Has the remote methods of its class; isinstance() takes it for one of them.

    _lazy_collect: whether results stay in the workers (at first as initialize() says);
    _ray_get_timeout: seconds that a call may take (None: any)."""

    def __init__(self, cls, group, mesh, lazy, share):
        self._class, self.group, self.device_mesh = cls, group, mesh
        self._lazy_collect, self._ray_get_timeout = lazy, None
        self._key = self._make(self, str(self), cls, share)

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
        there = ", ".join(each for each in dir(self._class) if how_of(self._class, each))
        raise AttributeError(
            f"infra: {self} lives in the workers of group {self.group.name}, from where {name!r} "
            f"cannot be read; its remote methods are {there}"
        )

    def _ticket(self, group, refs):
        del refs
        self.group.check_run(self)
        if group is not self.group:
            what = f"infra: an argument sent to group {group.name}"
            checks.refuse(what, self, "an object of the same group")
        return "object", self._key

    # ---- calls

    def _make(self, owner, what, maker, share):
        """Keeps the maker's result in every worker as long as there is an owner. Its key."""
        key = self.group.new_key(owner)
        self.group.send(what, key, maker, [share] * self.group.size).result()
        return key

    def _invoke(self, name, how, /, *args, **kwargs):
        given = shares(how, self, args, kwargs)
        given = given[:1] if how.execute == "first" else given
        return self._result(self._key, name, how, given)

    def _result(self, key, name, how, given):
        """Calls the method of the object behind the key with a Share for each rank; the result,
        lazy or not."""
        asked = ranks_of(how, self.device_mesh)
        pending = self.group.send(f"{self}.{name}", key, name, given, asked)
        timeout = how.timeout if self._ray_get_timeout is None else self._ray_get_timeout
        result = LazyResult(pending, asked, how.collect, timeout)
        if how.sync or name == "__next__":
            self._check_loop(pending.result(timeout))
        lazy = self._lazy_collect if how.lazy_collect is None else how.lazy_collect
        return result if lazy else result()

    def _check_loop(self, outcomes):
        """StopIteration: a loop has ended in all workers. InternalError: in some."""
        going = [rank for rank, outcome in outcomes.items() if not outcome.stopped]
        if not going:
            raise StopIteration
        if len(going) < len(outcomes):
            raise InternalError(
                f"infra: the loop over {self} has ended in some workers, but not in {going}"
            )

    # ---- what Python calls

    def __len__(self):
        return self._python("__len__", of_one)

    def __getitem__(self, index):
        return self._python("__getitem__", of_one, index)

    def __call__(self, /, *args, **kwargs):
        """Calls the object. TypeError: it has no remote method __call__."""
        return self._python("__call__", None, *args, **kwargs)

    def _python(self, name, otherwise, /, *args, **kwargs):
        """otherwise: how, where the method is not remote; None: it cannot be called then."""
        how = how_of(self._class, name) or otherwise
        if how is None or not hasattr(self._class, name):
            raise TypeError(f"infra: {self} has no remote method {name}")
        return self._invoke(name, how, *args, **kwargs)

    def __iter__(self):
        """A loop that lives in the workers. TypeError: its class has none."""
        if not hasattr(self._class, "__iter__"):
            raise TypeError(f"infra: {self} cannot be iterated")
        return _Loop(self, how_of(self._class, "__iter__") or ITERATED)


class _Loop:
    """An iterator that lives in the workers."""

    def __init__(self, proxy, how):
        self._proxy, self._how = proxy, how
        self._key = proxy._make(self, f"{proxy}.__iter__", iter, Share((proxy,), {}))

    def __iter__(self):
        return self

    def __next__(self):
        """The next item, of all workers. InternalError: only some have one."""
        given = [Share((), {})] * self._proxy.group.size
        return self._proxy._result(self._key, "__next__", self._how, given)
