"""A server that does nothing: the least that any service adds to its client's own time.

Prints where it listens; serves until standard input ends.
"""

import asyncio
import functools
import json
import sys

LENGTH = b"\r\ncontent-length:"
ANSWERS = {  # by the end of the path
    "create_session": {"session_id": "s"},
    "create_model": {"request_id": "model", "model_id": "s:train:0"},
    "get_info": {"model_id": "s:train:0", "model_data": {}},
    "forward_backward": {"request_id": "passed:3"},
}
RESULTS = {"model": {"model_id": "s:train:0"}}  # promises; with passed:N, N log-probabilities


def field(number, value):
    """One of a protobuf message: a number, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def passed(count):
    """ForwardBackwardOutput of one datum with `count` log-probabilities of 0."""
    ends = (0).to_bytes(8, "little") + (4 * count).to_bytes(8, "little")
    tensor = field(1, bytes(4 * count)) + field(2, ends) + field(3, 1)
    arrays = field(1, b"ArrayRecord") + field(2, field(1, b"logprobs") + field(2, tensor))
    return field(1, b"ArrayRecord") + field(2, arrays + field(3, 1))


PASSED = functools.cache(passed)


def answer(path, body):
    """(content type, body) of a request."""
    if path.endswith("/retrieve_future"):
        promise = json.loads(body)["request_id"]
        if promise not in RESULTS:
            return "application/x-protobuf", PASSED(int(promise.partition(":")[2]))
        return "application/json", json.dumps(RESULTS[promise]).encode()
    return "application/json", json.dumps(ANSWERS.get(path.rsplit("/", 1)[1], {})).encode()


async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            _, found, rest = head.lower().partition(LENGTH)
            body = await reader.readexactly(int(rest.split(b"\r\n", 1)[0])) if found else b""
            kind, out = answer(head.split(b" ", 2)[1].decode(), body)
            top = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(out)}\r\n\r\n"
            writer.write(top.encode() + out)
    except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
        writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(f"serves at http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
