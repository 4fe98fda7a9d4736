"""remote_class and remote_function: what marks a class whose objects may live in other processes.
Where there are none, an object is an object and a call is a call."""

import functools
import inspect

from twinkle import checks
from twinkle.infra import current_run, mesh_here, register
from twinkle.remote.dispatch import Share
from twinkle.remote.how import EXECUTE, PLACEMENT, How


def remote_class(execute="peer", listed=True, keep=()):
    """Decorates a class. Its constructor may then be given remote_group=, instance_id= and
    device_mesh=, and a parameter annotated DeviceMesh defaults to the mesh of initialize(). With
    mode 'ray' and a remote_group the object is made in the workers of that group, and what the
    constructor returns has the class's remote methods, which are called there (docs/ray.md).

    execute: 'all', 'first' or 'peer': which processes answer for the object; the driver is one
    process, whose peers are all. In workers each has an object, whichever it is: its methods say
    who is called. listed: whether get_device_placement() shows the objects; a class
    that asks infra for its place itself is listed=False. keep: the arguments of placement that its
    **kwargs are given; all of a class that is listed.
    InvalidError: another execute, or what is decorated is no class. Building an object raises what
    check_mesh says of its mesh.
    """
    checks.one_of("infra: execute", execute, EXECUTE)
    checks.flag("infra: listed", listed)

    def decorate(cls):
        if not inspect.isclass(cls):
            checks.refuse("infra: what remote_class decorates", cls, "a class")
        _make_in_workers(cls)
        _take_placement(cls, listed, PLACEMENT if listed else keep)
        return cls

    return decorate


def _make_in_workers(cls):
    """The class's __new__ gives a Proxy where the object is to live in workers."""
    original = cls.__new__

    @functools.wraps(original)
    def new(klass, /, *args, **kwargs):
        run, group = current_run(), kwargs.get("remote_group")
        if run.cluster is not None and group is not None:
            _, mesh = _mesh_among(klass.__init__, (None, *args), kwargs)
            return run.made_in_workers(klass, group, mesh, Share(args, kwargs))
        if original is object.__new__:
            return object.__new__(klass)
        return original(klass, *args, **kwargs)

    # object's names no module: pickling the class would ask every module for an `object`.
    new.__module__ = cls.__module__
    cls.__new__ = new


def _mesh_among(init, args, kwargs):
    """(the parameter of an __init__ that is annotated DeviceMesh and not given, or None; the mesh
    that is given, or None)."""
    parameters = inspect.signature(init).parameters
    name = next((n for n, p in parameters.items() if "DeviceMesh" in str(p.annotation)), None)
    given = dict(zip(parameters, args, strict=False)) | kwargs
    return None if name in given else name, given.get(name) or given.get("device_mesh")


def _take_placement(cls, listed, keep):
    """The class's __init__ may be given the arguments of placement."""
    init = cls.__init__
    parameters = inspect.signature(init).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    takes_any = takes_any and init is not object.__init__  # its signature says so, too

    @functools.wraps(init)
    def wrapped(self, /, *args, **kwargs):
        group, (unset, mesh) = kwargs.get("remote_group"), _mesh_among(init, (self, *args), kwargs)
        for name in PLACEMENT:
            if name not in parameters and not (takes_any and name in keep):
                kwargs.pop(name, None)
        if unset is not None:
            kwargs[unset] = mesh_here(mesh)
        if listed and type(self).__init__ is wrapped:  # not of a base class
            register(self, mesh, group)
        init(self, *args, **kwargs)

    cls.__init__ = wrapped


def remote_function(
    dispatch="slice", execute="all", collect="none", sync=False, lazy_collect=None, timeout=None
):
    """Decorates a method of a remote_class.

    dispatch: which arguments each worker gets. 'slice': lists are cut into one piece for each;
    'slice_dp': lists, tensors and dicts are cut by data rank; 'all': the same; or a callable of
    (workers, index, args, kwargs, device_mesh=) that returns the (args, kwargs) of one.
    execute: 'all', 'first' or 'peer': which workers are called, from the driver 'peer' is all.
    collect: what becomes of their results, in the order of ranks: 'none' (a list of them),
    'flatten' (lists put one after the other), 'mean', 'avg', 'sum', 'first', 'last_pp' (a list of
    the last pipeline stage's), 'last_pp_first', or a callable of the list. sync: the call is waited
    for. lazy_collect: True leaves the results in the workers until they are looked at, False
    returns them, None does as the object's _lazy_collect or else initialize() says. timeout:
    seconds that its results are waited for; TimeoutError after that.
    InvalidError: another word or kind, a timeout that is not above 0, or what is decorated cannot
    be called.
    """
    return How(dispatch, execute, collect, sync, lazy_collect, timeout)
