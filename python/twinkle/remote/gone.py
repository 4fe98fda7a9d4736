"""The words for a worker that is gone: how it ended, and what helps."""

import re

ANEW = "nothing goes on with a part of a group: start anew from the last checkpoint"
_LESS_MEMORY = (
    "with less memory for each worker (a smaller token_budget or activation_bytes, fsdp_size, "
    "fewer workers on a node), or on a larger node"
)


def why_gone(error):
    """'is gone: CAUSE; REMEDY', of the RayError that a call to a worker has raised. The cause is
    Ray's report in a line: of its memory monitor, or of an actor's end."""
    from ray.exceptions import OutOfMemoryError

    text = " ".join(str(error).split())
    if isinstance(error, OutOfMemoryError):
        found = re.search(r"Memory on the node \(IP: ([^,]+),.*?\) was (\S+) used / (\S+)", text)
        detail = f"{found[2]} of {found[3]} on {found[1]}" if found else text
        full = f"Ray has ended it since its node's memory was nearly full ({detail})"
        return f"is gone: {full}; {ANEW}, {_LESS_MEMORY}"
    pid, address = (re.search(rf"\b{name}: (\S+)", text) for name in ("pid", "ip"))
    detail = re.search(r"Worker exit detail: (.*?)(?: Some common causes| There are some|$)", text)
    if not (pid and address and detail):
        return f"is gone: {text}; {ANEW}"
    return (
        f"is gone: its process, pid {pid[1]} on {address[1]}, was killed, ran out of memory, "
        f"crashed or was stopped for TWINKLE_DIST_TIMEOUT_SECONDS ({detail[1].rstrip('. ')}); "
        f"where the kernel's log (dmesg) tells of a lack of memory, go on {_LESS_MEMORY}; {ANEW}"
    )
