"""Stops, hand-overs and socket activation: no stream is cut, no connection refused."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys

import aiohttp

from tests.integration.gateway.running import ROOT, World, world


async def pid(w: World) -> int:
    return int((await w.ready())["pid"])


def test_a_reload_hands_over_while_streams_go_on_and_requests_come() -> None:
    async def scenario() -> None:
        async with world(rate=10, chunks=300) as w:
            assert w.process is not None
            before = await pid(w)
            async with w.stream() as response:
                await response.content.readany()
                statuses: list[int] = []
                stop = asyncio.Event()

                async def client() -> None:
                    while not stop.is_set():
                        statuses.append((await w.get("/v1/models")).status)

                clients = [asyncio.ensure_future(client()) for _ in range(4)]
                w.process.send_signal(signal.SIGHUP)

                async def handed_over() -> bool:
                    return await pid(w) != before

                await w.until(handed_over)
                served = len(statuses)
                await w.until(lambda: len(statuses) > served + 50)
                stop.set()
                await asyncio.gather(*clients)
                assert set(statuses) == {200}
                os.kill(before, 0)  # the old one is still there, for its stream
                w.engines[0].rate = 1000
                assert (await response.read()).endswith(b"data: [DONE]\n\n")
            await w.until(lambda: not alive(before))

    asyncio.run(scenario())


async def handed_over(w: World) -> int:
    """Hand over; the process that leaves."""
    assert w.process is not None
    before = await pid(w)
    w.process.send_signal(signal.SIGHUP)

    async def another() -> bool:
        return await pid(w) != before

    await w.until(another)
    return before


def test_a_stream_longer_than_the_limit_for_a_stop_outlives_a_hand_over() -> None:
    async def scenario() -> None:
        async with world(rate=20, chunks=100, stop_seconds=1) as w:
            async with w.stream() as response:
                await response.content.readany()
                before = await handed_over(w)
                assert (await response.read()).endswith(b"data: [DONE]\n\n")
            await w.until(lambda: not alive(before))

    asyncio.run(scenario())


def test_a_stop_after_a_hand_over_limits_what_the_old_one_has_left() -> None:
    async def scenario() -> None:
        async with world(rate=20, chunks=100_000, stop_seconds=1) as w:
            assert w.process is not None
            async with w.stream() as response:
                await response.content.readany()
                before = await handed_over(w)
                # Well beyond the limit: nobody has asked for a stop yet.
                for _ in range(60):
                    assert b"stopping" not in await response.content.readany()
                os.kill(before, 0)
                w.process.send_signal(signal.SIGTERM)
                text = b""
                try:
                    async for piece in response.content.iter_any():
                        text += piece
                except aiohttp.ClientError:
                    pass
                assert b'"code": "stopping"' in text
            assert await asyncio.to_thread(w.process.wait) == 0
            assert not alive(before)

    asyncio.run(scenario())


def test_a_successor_that_does_not_come_up_changes_nothing() -> None:
    async def scenario() -> None:
        async with world() as w:
            assert w.process is not None
            # What the next worker would start from is broken: as an environment half built.
            (w.directory / "broken" / "llm_gateway").mkdir(parents=True)
            os.kill(w.process.pid, signal.SIGTERM)
            await asyncio.to_thread(w.process.wait)
            link = w.directory / "code"
            link.symlink_to(ROOT / "gateway")
            w._client = None
            w.start(pythonpath=str(link))
            await w.until(w.serves)
            before = await pid(w)
            link.unlink()
            link.symlink_to(w.directory / "broken")
            w.process.send_signal(signal.SIGHUP)
            await w.until(lambda: "hand-over failed" in w.log)
            assert await pid(w) == before
            assert (await w.post()).status == 200

    asyncio.run(scenario())


def test_a_worker_that_is_killed_comes_back_and_nobody_is_refused() -> None:
    async def scenario() -> None:
        async with world() as w:
            os.kill(await pid(w), signal.SIGKILL)
            await w.client().close()
            w._client = None
            # The socket is the supervisor's: a connection waits, it is not refused.
            assert (await w.post()).status == 200

    asyncio.run(scenario())


def test_a_worker_does_not_outlive_its_supervisor() -> None:
    async def scenario() -> None:
        async with world(rate=20, chunks=20) as w:
            assert w.process is not None
            worker = await pid(w)
            async with w.stream() as response:
                await response.content.readany()
                w.process.kill()
                await asyncio.to_thread(w.process.wait)
                assert (await response.read()).endswith(b"data: [DONE]\n\n")
            while alive(worker):
                await asyncio.sleep(0.05)

    asyncio.run(scenario())


def test_sigterm_lets_streams_finish() -> None:
    async def scenario() -> None:
        async with world(rate=20, chunks=20) as w:
            assert w.process is not None
            async with w.stream() as response:
                await response.content.readany()
                w.process.send_signal(signal.SIGTERM)
                assert (await response.read()).endswith(b"data: [DONE]\n\n")
            assert await asyncio.to_thread(w.process.wait) == 0

    asyncio.run(scenario())


def test_a_stream_beyond_the_limit_is_ended_and_told() -> None:
    async def scenario() -> None:
        async with world(rate=20, chunks=100_000, stop_seconds=1) as w:
            assert w.process is not None
            async with w.stream() as response:
                await response.content.readany()
                w.process.send_signal(signal.SIGTERM)
                text = b""
                try:
                    async for piece in response.content.iter_any():
                        text += piece
                except OSError:
                    pass
                except Exception as error:
                    assert type(error).__name__ == "ClientPayloadError"  # noqa: PT017
                assert b'"code": "stopping"' in text
                assert b"[DONE]" not in text
            await w.engines[0].aborted.wait()
            assert await asyncio.to_thread(w.process.wait) == 0

    asyncio.run(scenario())


def test_a_socket_of_systemds_is_used_and_outlives_the_service() -> None:
    async def scenario() -> None:
        async with world() as w:
            await w.stop()
            w._client = None
            w.socket.unlink()
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(str(w.socket))
            listener.listen(64)
            for _ in range(2):
                asked = asyncio.ensure_future(w.post())  # before anybody serves: it waits
                w.process = activated(w, listener)
                assert (await asked).status == 200
                await w.stop()
                w._client = None
            listener.close()

    asyncio.run(scenario())


def activated(w: World, listener: socket.socket) -> subprocess.Popen[bytes]:
    """As systemd starts it: the socket is descriptor 3, LISTEN_PID is the process itself."""
    start = (
        "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ['LISTEN_PID'] = str(os.getpid());"
        "os.execv(sys.executable, [sys.executable, '-m', 'llm_gateway'])"
    )
    with (w.directory / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", start, str(listener.fileno())],
            stdout=log,
            stderr=log,
            env=w.environment() | {"LISTEN_FDS": "1"},
            pass_fds=(listener.fileno(), 3),
        )


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
