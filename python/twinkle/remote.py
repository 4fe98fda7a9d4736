"""remote_class and remote_function: what marks a class whose objects may live in other processes.
In one process an object is an object and a call is a call."""

import functools
import inspect

from twinkle import checks
from twinkle.infra import current_run, register

_PLACEMENT = ("remote_group", "instance_id", "device_mesh")
_EXECUTE = ("all", "first", "peer")
_DISPATCH = ("slice", "all", "slice_dp")
_COLLECT = ("none", "flatten", "mean", "avg", "sum", "first", "last_pp", "last_pp_first")


def remote_class(execute="peer"):
    """Decorates a class. Its constructor may then be given remote_group=, instance_id= and
    device_mesh=, and a parameter annotated DeviceMesh defaults to the mesh of initialize().

    execute: 'all', 'first' or 'peer': which processes answer for the object. InvalidError: another
    one, or what is decorated is no class. Building an object raises what check_mesh says of its
    mesh.
    """
    _one_of("execute", execute, _EXECUTE)

    def decorate(cls):
        if not inspect.isclass(cls):
            checks.refuse("infra: what remote_class decorates", cls, "a class")
        init = cls.__init__
        signature = inspect.signature(init)
        parameters = signature.parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        mesh_name = next(
            (n for n, p in parameters.items() if "DeviceMesh" in str(p.annotation)), None
        )

        @functools.wraps(init)
        def wrapped(self, *args, **kwargs):
            mesh, group = kwargs.get("device_mesh"), kwargs.get("remote_group")
            for name in _PLACEMENT:
                if name not in parameters and not takes_any:
                    kwargs.pop(name, None)
            if mesh_name is not None:
                given = signature.bind_partial(self, *args, **kwargs).arguments
                mesh = given.get(mesh_name) or current_run().mesh
                if given.get(mesh_name) is None and mesh_name not in given:
                    kwargs[mesh_name] = mesh
            if type(self).__init__ is wrapped:  # not of a base class
                register(self, mesh, group)
            init(self, *args, **kwargs)

        cls.__init__ = wrapped
        return cls

    return decorate


def remote_function(
    dispatch="slice", execute="all", collect="none", sync=False, lazy_collect=None, timeout=None
):
    """Decorates a method of a remote_class.

    dispatch: 'slice', 'all', 'slice_dp' or a callable: how arguments are cut for the processes.
    collect: 'none', 'flatten', 'mean', 'avg', 'sum', 'first', 'last_pp', 'last_pp_first' or a
    callable: what becomes of their results. timeout: seconds. InvalidError: another word or kind, a
    timeout that is not above 0, or what is decorated cannot be called.
    """
    if not callable(dispatch):
        _one_of("dispatch", dispatch, _DISPATCH)
    if not callable(collect):
        _one_of("collect", collect, _COLLECT)
    _one_of("execute", execute, _EXECUTE)
    checks.flag("infra: sync", sync)
    if lazy_collect is not None:
        checks.flag("infra: lazy_collect", lazy_collect)
    if timeout is not None:
        checks.number("infra: timeout", timeout, above=0)

    def decorate(function):
        if not callable(function):
            checks.refuse("infra: what remote_function decorates", function, "a function")
        return function

    return decorate


def _one_of(what, value, known):
    if not isinstance(value, str) or value not in known:
        checks.refuse(f"infra: {what}", value, f"one of {', '.join(known)}")
