"""get_device_placement(): a picture of groups, the meshes on them, and what was built on each."""

from twinkle.device_mesh import DeviceMesh
from twinkle.infra import DeviceGroup, Placed, asked_device, current_run, device_of
from twinkle.platform import Platform

_WIDTH = 80


def get_device_placement():
    """A box of 80 columns with a block for each device group: its devices and ranks, the meshes on
    it with the axes that several ranks share, and under each mesh the classes of the objects that
    were built on it, here or in the group's workers, with the device that their engine runs on.
    What was built in this process and in no group follows in a block of its own. InvalidError:
    TWINKLE_DEVICE names no device."""
    run = current_run()
    groups = run.groups or [DeviceGroup("default", Platform.get_world_size())]
    blocks = [_group_lines(group, run) for group in groups]
    alone = [made for made in run.objects if made.group is None]
    if run.groups and alone:
        blocks.append(["in no group: this process", *_mesh_lines(alone)])
    return _boxed(blocks)


def _group_lines(group, run):
    ranks = list(range(group.ranks)) if isinstance(group.ranks, int) else group.ranks
    name = group.name if run.groups else None  # objects without a group are in that of all ranks
    made = [each for each in run.objects if each.group == name]
    if not made and run.mesh is not None and run.mesh.world_size == group.num_ranks:
        made = [Placed("", run.mesh, None, name)]
    head = f"group {group.name}: {group.num_ranks} x {_kind_of(group)}, ranks {ranks}"
    return [head, *_mesh_lines(made)]


def _kind_of(group):
    """The actual and the requested kind of a group's devices."""
    asked, _ = asked_device(None, group)
    kind = group.device_type or device_of(None)
    if Platform.forced():
        prefix = Platform.of(kind.partition(":")[0]).device_prefix()
        differs = prefix != asked.partition(":")[0]
        return asked + (f" by TWINKLE_DEVICE, not {kind}" if differs else "")
    absent = asked == "cuda" and Platform.why_not_on(asked)
    return kind + (" that are not there" if absent else "")


def _mesh_lines(made):
    """A line for each mesh and device, followed by the classes of what is on it."""
    on = {}
    for each in made:
        sizes = _sizes_of(each.mesh) + (f" on {each.device}" if each.device else "")
        on.setdefault(sizes, []).append(each.name)
    for sizes, names in on.items():
        yield f"  {sizes}"
        for name in filter(None, dict.fromkeys(names)):
            yield f"    {name} x {names.count(name)}" if names.count(name) > 1 else f"    {name}"


def _sizes_of(mesh: DeviceMesh | None):
    if mesh is None:
        return "no mesh (one device)"
    active = {axis: size for axis, size in mesh.sizes.items() if size > 1}
    both = (mesh.sizes, active)
    texts = [", ".join(f"{axis}={size}" for axis, size in of.items()) for of in both]
    return f"mesh {texts[0]}" + (f" (parallel: {texts[1]})" if "" != texts[1] != texts[0] else "")


def _boxed(blocks):
    inner = _WIDTH - 4
    lines = ["┌" + " Device placement ".center(_WIDTH - 2, "─") + "┐"]
    for index, block in enumerate(blocks):
        if index > 0:
            lines.append("├" + "─" * (_WIDTH - 2) + "┤")
        for text in block:
            pieces = [text[i : i + inner] for i in range(0, len(text), inner)]
            lines += ["│ " + piece.ljust(inner) + " │" for piece in pieces]
    return "\n".join([*lines, "└" + "─" * (_WIDTH - 2) + "┘"])
