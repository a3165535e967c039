"""What stands between a collector and its PostgreSQL and can fall silent: it takes everything and passes nothing on."""

import asyncio
import contextlib
import threading


class Muffle:
    """Passes bytes to and from a port of this machine, in a thread of its own."""

    def __init__(self, to: int) -> None:
        self._to = to
        self.taken = 0  # connections
        self._ends: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._passing = asyncio.Event()
        self._passing.set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._do(self._serve())
        self.port = int(self._server.sockets[0].getsockname()[1])

    def fall_silent(self, *, cut: bool) -> None:
        """Acknowledge what comes and answer nothing; connections that are open stay so, or are ``cut``."""
        self._do(self._fall_silent(cut=cut))

    def lose(self) -> None:
        """Answer nothing more on connections that are open, and pass on new ones."""
        self._do(self._lose())

    def heal(self) -> None:
        """Pass on what comes, and what has come meanwhile: a host that goes on where it hung."""
        self._loop.call_soon_threadsafe(self._passing.set)

    def close(self) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, what):
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()

    async def _serve(self) -> asyncio.Server:
        return await asyncio.start_server(self._take, "127.0.0.1", backlog=200)

    async def _fall_silent(self, *, cut: bool) -> None:
        self._passing.clear()
        for end in tuple(self._ends) if cut else ():
            end.transport.abort()

    async def _lose(self) -> None:
        self._passing.clear()
        self._passing = asyncio.Event()
        self._passing.set()

    async def _end(self) -> None:
        self._server.close()
        ours = asyncio.all_tasks() - {asyncio.current_task()}
        for task in ours:
            task.cancel()
        await asyncio.gather(*ours, return_exceptions=True)
        for end in tuple(self._ends):
            end.transport.abort()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer)
        self.taken += 1
        passing = self._passing
        with contextlib.suppress(OSError):
            await passing.wait()
            there, back = await asyncio.open_connection("127.0.0.1", self._to)
            self._ends.add(back)
            await asyncio.gather(self._pass_on(reader, back, passing), self._pass_on(there, writer, passing))

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passing: asyncio.Event
    ) -> None:
        try:
            while data := await reader.read(2**16):
                await passing.wait()
                writer.write(data)
        finally:
            self._ends.discard(writer)
            writer.close()
