"""Classes whose objects the tests put into workers."""

import gc
import os
import threading
import time
from pathlib import Path

import numpy as np
import torch

from twinkle import DeviceMesh, InvalidError, Platform, remote_class, remote_function
from twinkle.errors import ConflictError
from twinkle.remote.rows import first_row


def everybody_backwards(count, index, args, kwargs, device_mesh=None):
    """A dispatch: the arguments of worker i are those of the i-th from the end."""
    assert device_mesh is not None
    return (args[0][count - 1 - index],), kwargs


def longest(values):
    """A collect."""
    return max(values, key=len)


class Marked:
    """Notes in a folder which processes unpickle it."""

    def __init__(self, folder):
        self.folder = folder

    def __setstate__(self, state):
        self.__dict__.update(state)
        Path(self.folder, str(os.getpid())).touch()


class Unreadable:
    """Cannot be unpickled elsewhere."""

    def __reduce__(self):
        return _here_alone, (os.getpid(),)


def _here_alone(pid):
    if pid != os.getpid():
        raise LookupError("it is not known here")


def busy(until):
    """For so many seconds, or until there is this file. Returns whether it has come within a
    minute's half."""
    if not isinstance(until, str):
        time.sleep(until)
        return True
    for _ in range(600):
        if Path(until).exists():
            return True
        time.sleep(0.05)
    return False


@remote_class(execute="all")
class Thing:
    """Says what it gets, and who it is."""

    def __init__(self, make=None, mesh: DeviceMesh | None = None, other=None, fail=False):
        if fail:
            raise ConflictError("thing: it is taken")
        self.made = None if make is None else make()
        self.mesh, self.other, self.steps = mesh, other, 0

    @remote_function(dispatch="slice")
    def sliced(self, items, *rest, **named):
        return items, rest, named

    @remote_function(dispatch="slice_dp")
    def sliced_dp(self, items, **named):
        return items, named, first_row()

    @remote_function(dispatch="slice", collect="none")
    def take(self, items):
        self.steps += len(items)

    @remote_function(dispatch="all", collect="none")
    def first_rows(self):
        return first_row()

    @remote_function(dispatch="all")
    def same(self, items):
        return items

    @remote_function(dispatch=everybody_backwards, collect=longest)
    def own(self, text):
        return text + "!" * Platform.get_rank()

    @remote_function(dispatch=lambda *_, **__: None)
    def dispatched_to_nobody(self):
        pass

    @remote_function(dispatch="slice_dp", collect="flatten")
    def doubled(self, items):
        return [2 * item for item in items]

    @remote_function(dispatch="all", collect="mean")
    def mean(self, value):
        return value + Platform.get_rank()

    @remote_function(dispatch="all", collect="avg")
    def avg(self, value):
        return value + Platform.get_rank()

    @remote_function(dispatch="all", collect="sum")
    def sum(self, value):
        return np.full(2, value + Platform.get_rank())

    @remote_function(dispatch="all", execute="first", collect="first")
    def one_dict(self):
        return {"a": [1, 2, 3], "b": 7}

    @remote_function(dispatch="all", execute="first", collect="first")
    def count_on_the_first(self):
        self.steps += 1
        return self.steps

    @remote_function(execute="first", collect="first")
    def whole(self, items):
        return items, first_row()

    @remote_function(dispatch="all", collect="first")
    def rows_of_the_first(self, count):
        return list(range(count))

    @remote_function(dispatch="slice_dp")
    def places(self, items):
        return items, first_row()

    @remote_function(dispatch="all", collect="last_pp")
    def last_stage(self):
        return Platform.get_rank()

    @remote_function(dispatch="all", collect="last_pp_first")
    def first_of_last_stage(self):
        return Platform.get_rank()

    @remote_function(dispatch="all", execute="peer", collect="none")
    def steps_of_all(self):
        return self.steps

    @remote_function(dispatch="all", collect="none")
    def facts(self):
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TWINKLE_MODE", "WORKER_NAME", "MASTER_PORT")
        return {name: os.environ.get(name) for name in names} | {
            "pid": os.getpid(), "made": self.made, "mesh": self.mesh, "folder": str(Path.cwd()),
            "card": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "other": self.other is not None and self.other.steps,
        }  # fmt: skip

    @remote_function(dispatch="all", collect="first")
    def fail(self, error, rank=None):
        if rank in (None, Platform.get_rank()):
            raise error
        return "well"

    @remote_function(dispatch="all", collect="none")
    def fail_beside(self, error, until, then=None):
        """The first worker fails; the others are busy for so long, and then fail, too. Where a
        file has not come they leave one at its name with `.late`."""
        if Platform.get_rank() == 0:
            raise error
        if not busy(until):
            Path(f"{until}.late").touch()
        if then is not None:
            raise then

    @remote_function(dispatch="all", collect="first", lazy_collect=False)
    def step(self):
        self.steps += 1
        return self.steps

    @remote_function(dispatch="all", collect="none", timeout=0.5)
    def wait_half_a_second(self, until):
        return busy(until)

    @remote_function(dispatch="all", collect="none")
    def wait(self, until, rank=None):
        return rank not in (None, Platform.get_rank()) or busy(until)

    @remote_function(dispatch="all", collect="first")
    def wait_and_fail(self, until, error):
        busy(until)
        raise error

    @remote_function(dispatch="all", collect="none")
    def large(self, megabytes):
        return np.zeros(megabytes << 20, np.uint8)

    @remote_function(dispatch="all", collect="sum")
    def size(self, arrays):
        return sum(array.nbytes for array in arrays)

    @remote_function(dispatch="all", collect="none")
    def held(self):
        """Things in this worker."""
        return sum(type(each) is Thing for each in gc.get_objects())

    @remote_function(dispatch="all", collect="first")
    def unsendable(self):
        return threading.Lock()

    @remote_function(dispatch="all", collect="mean")
    def ones(self, count):
        return np.ones(count)

    @remote_function(dispatch="all", collect="first")
    def unreadable(self):
        return Unreadable()

    @remote_function(dispatch="all", collect="first")
    def marked(self, folder):
        return Marked(folder)

    @remote_function(dispatch="all")
    def count(self, *items):
        return len(items)

    @remote_function(dispatch="all", collect="first")
    def stopped(self):
        return next(iter(()))

    @remote_function(dispatch="all", collect="first")
    def nested(self, group):
        return Thing(remote_group=group).private()

    @remote_function(dispatch="all", collect="first", sync=True)
    def synced(self):
        raise InvalidError("thing: synced")

    def private(self):
        return 1


@remote_class(execute="all")
class Loop:
    """Batches of a rank: `count` of them."""

    def __init__(self, count, uneven=False):
        self.count, self.uneven = count, uneven

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index * 10

    def __iter__(self):
        rank = Platform.get_rank()
        for i in range(self.count + (self.uneven and rank)):
            yield [f"{rank}.{i}", torch.tensor(i)]


@remote_class(execute="first")
class OfTheFirst:
    """Where it is, which its constructor has noted."""

    def __init__(self):
        self.rank = Platform.get_rank()

    @remote_function(dispatch="all", collect="none")
    def ranks(self):
        return self.rank

    @remote_function(dispatch="all", execute="first", collect="first")
    def first(self):
        return self.rank


def never_answered():
    """For worker.address."""
    time.sleep(600)


def begin_unevenly(environment, *rest):
    """For infra.begin_worker of two ranks: the second cannot begin, and the first waits."""
    if environment["RANK"] == "1":
        raise ConflictError("thing: it cannot begin")
    time.sleep(600)
