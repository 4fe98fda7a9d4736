"""The words for a worker that is gone: how it ended, and what helps."""

import re

ANEW = "nothing goes on with a part of a group: start anew from the last checkpoint"
_LESS_MEMORY = (
    "with less memory for each worker (a smaller token_budget or activation_bytes, fsdp_size, "
    "fewer workers on a node), or on a larger node"
)


def why_gone(error):
    """'is gone: CAUSE; REMEDY', of the RayError that a call to a worker has raised."""
    from ray.exceptions import OutOfMemoryError

    text = " ".join(str(error).split())
    if isinstance(error, OutOfMemoryError):
        return f"is gone: {_full_node(text)}; {ANEW}, {_LESS_MEMORY}"
    cause, may_be_memory = _ended(text)
    if may_be_memory:
        cause += f"; where the kernel's log (dmesg) tells of a lack of memory, go on {_LESS_MEMORY}"
    return f"is gone: {cause}; {ANEW}"


def _full_node(text):
    """The report of Ray's memory monitor on a node whose worker it has ended, in a line."""
    found = re.search(r"Memory on the node \(IP: ([^,]+),.*?\) was (\S+) used / (\S+) limit", text)
    detail = f"{found[2]} of {found[3]} on {found[1]}" if found else text
    return f"Ray has ended it since its node's memory was nearly full ({detail})"


def _ended(text):
    """(what Ray says of an actor's end, in a line; whether lack of memory may be the cause)."""
    pid, address = (re.search(rf"\b{name}: (\S+)", text) for name in ("pid", "ip"))
    detail = re.search(r"Worker exit detail: (.*?)(?: Some common causes| There are some|$)", text)
    if not (pid and address and detail):
        return text, False
    process = (
        f"its process, pid {pid[1]} on {address[1]}, was killed, ran out of memory, crashed or was "
        "stopped for TWINKLE_DIST_TIMEOUT_SECONDS"
    )
    return f"{process} ({detail[1].rstrip('. ')})", True
