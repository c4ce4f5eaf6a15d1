"""`ssh -L 127.0.0.1:PORT:SOCKET` in small: each connection to the port is one to the socket."""

import asyncio
import sys

ADDRESS, PORT, SOCKET = sys.argv[1].split(":")


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        far_reader, far_writer = await asyncio.open_unix_connection(SOCKET)
    except OSError:
        writer.close()
        return
    await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))


async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        target.write(data)
        await target.drain()
    target.close()


async def main() -> None:
    try:
        server = await asyncio.start_server(relay, ADDRESS, int(PORT), reuse_address=True)
    except OSError:
        sys.exit(f"bind [{ADDRESS}]:{PORT}: Address already in use")
    await server.serve_forever()


asyncio.run(main())
