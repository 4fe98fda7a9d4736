"""remote_class and remote_function in one process: objects and calls as without them."""

import pickle
from pathlib import Path

import pytest

import twinkle
from twinkle import DeviceMesh, InvalidError, infra, remote_class, remote_function


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(infra, "_run", infra._Run())


@remote_class(execute="first")
class Counter:
    """Counts."""

    def __init__(self, start=0, mesh: DeviceMesh | None = None):
        self.count, self.mesh = start, mesh

    @remote_function(dispatch="slice_dp", collect="flatten", lazy_collect=False, timeout=3)
    def add(self, values):
        self.count += sum(values)
        return [self.count]

    @remote_function(dispatch=lambda *a, **k: None, collect=lambda parts: parts, sync=True)
    def __iter__(self):
        yield self.count


@remote_class()
class Loose:
    def __init__(self, **kwargs):
        self.kwargs = kwargs


class Child(Counter):
    pass


@remote_class(execute="all")
class Bare:
    """As the class of docs/ray.md: no constructor."""


def test_objects_and_calls_are_plain_ones():
    counter = Counter(2, remote_group="model", instance_id="x")
    assert counter.add([1, 2]) == [5] and list(counter) == [5]
    assert Counter.__doc__ == "Counts." and Counter.add.__name__ == "add"
    assert counter.mesh is None
    assert isinstance(Bare(remote_group="model", device_mesh=None), Bare)
    assert Loose(remote_group="model", size=1).kwargs == {"remote_group": "model", "size": 1}


def test_the_mesh_of_the_run_is_the_default_and_the_placement_shows_the_object():
    mesh = DeviceMesh.from_sizes(dp_size=1)
    twinkle.initialize(global_device_mesh=mesh)
    own = DeviceMesh.from_sizes(fsdp_size=1)
    assert Counter().mesh is mesh and Counter(0, own).mesh is own and Child(mesh=own).mesh is own
    text = twinkle.get_device_placement()
    assert "Counter x 2" not in text and "Counter" in text and "Child" in text


@pytest.mark.parametrize(
    ("decorate", "text"),
    [
        (
            lambda: remote_class(execute="some"),
            "execute is 'some', it must be 'all', 'first' or 'peer'",
        ),
        (lambda: remote_class()(3), "what remote_class decorates is 3, it must be a class"),
        (lambda: remote_class(Counter), "execute is .*Counter.*, it must be 'all'"),
        (
            lambda: remote_function("cut"),
            "dispatch is 'cut', it must be 'slice', 'all' or 'slice_dp'",
        ),
        (lambda: remote_function(collect="max"), "collect is 'max', it must be 'none', 'flatten'"),
        (lambda: remote_function(execute=None), "execute is None"),
        (lambda: remote_function(sync=1), "sync is 1, it must be True or False"),
        (lambda: remote_function(lazy_collect=1), "lazy_collect is 1"),
        (lambda: remote_function(timeout=0), "timeout is 0, it must be a number above 0"),
        (lambda: remote_function()(3), "what remote_function decorates is 3"),
    ],
)
def test_wrong_arguments_are_named(decorate, text):
    with pytest.raises(InvalidError, match=text):
        decorate()


def test_a_class_of_a_script_is_pickled_without_a_warning_of_numpys(recwarn):
    pytest.importorskip("numpy")
    cloudpickle = pytest.importorskip("ray.cloudpickle")

    @remote_class()
    class OfAScript:
        pass

    assert type(pickle.loads(cloudpickle.dumps(OfAScript))()).__name__ == "OfAScript"
    assert not [str(warning.message) for warning in recwarn if "np.object" in str(warning.message)]


def test_a_worker_whose_machine_lacks_the_drivers_folder_says_so(monkeypatch, tmp_path, logged):
    from twinkle.remote.worker import go_to

    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    go_to(str(tmp_path / "there"), "two-1")
    assert Path.cwd() == tmp_path / "there" and not logged
    go_to("/nowhere", "two-1")
    assert Path.cwd() == tmp_path / "there"
    assert ["of worker two-1 has no folder /nowhere" in text for text in logged] == [True]
