"""A process that passes connections from ports of this machine into a network namespace: `Network` starts it there.

It is given listening sockets that were made outside, as FD=HOST:PORT, and connects from where it runs. It ends when
its standard input does, so that it outlives nobody.
"""

import asyncio
import contextlib
import socket
import sys

_BLOCK = 65_536


async def serve(pairs: list[tuple[int, str, int]]) -> None:
    """Relay until standard input ends."""
    servers = [
        await asyncio.start_server(_Relay(host, port).pass_on, sock=socket.socket(fileno=descriptor))
        for descriptor, host, port in pairs
    ]
    await asyncio.to_thread(sys.stdin.buffer.read)
    for server in servers:
        server.close()


class _Relay:
    """Passes the connections of one socket on to one address."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection both ways until both ends have closed; nobody there closes it at once."""
        with contextlib.closing(writer):
            try:
                far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
                with contextlib.closing(far_writer):
                    async with asyncio.TaskGroup() as both:
                        both.create_task(_copy(reader, far_writer))
                        both.create_task(_copy(far_reader, writer))
            except* OSError:
                pass  # one end broke off: the other sees its connection end


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while block := await reader.read(_BLOCK):
        writer.write(block)
        await writer.drain()
    writer.write_eof()


def _parse(pair: str) -> tuple[int, str, int]:
    descriptor, _, target = pair.partition("=")
    host, _, port = target.rpartition(":")
    return int(descriptor), host, int(port)


if __name__ == "__main__":
    asyncio.run(serve([_parse(pair) for pair in sys.argv[1:]]))
