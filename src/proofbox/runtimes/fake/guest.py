"""The far end of the wire, in this process: docs/protocol.md from the guest's side, honest unless its script lies."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Final

import anyio
from anyio.abc import TaskGroup

from proofbox.kit.loop import Background
from proofbox.runtimes.fake import lies, program
from proofbox.runtimes.fake.faults import Faults
from proofbox.runtimes.fake.files import FakeFiles
from proofbox.runtimes.fake.stream import FakeStream, OutputLimitPassed
from proofbox.wire import frames
from proofbox.wire import guest as wire
from proofbox.wire.frames import Frame, WireError, encode_frame

ECHO_PORT: Final = 7


class _Gone(Exception):
    """The guest ends here, by its script or because the host left the protocol."""


class FakeGuest:
    """One sandbox's guest. ``serve`` starts it; it ends with its connection, like the real one."""

    def __init__(self, channel: socket.socket, faults: Faults, programs: Mapping[str, program.Program]) -> None:
        self.oom_kills = 0
        self.denials = 0
        self.ended = anyio.Event()
        self._channel = channel
        self._faults = faults
        self._programs = programs
        self._files = FakeFiles()
        self._streams: dict[int, FakeStream] = {}
        self._highest = 0
        self._asked = 0
        self._writing = anyio.Lock()
        self._background: Background | None = None
        self._tasks: TaskGroup | None = None

    def start(self) -> None:
        """Runs it in the background of the event loop."""
        self._background = Background(self._serve, "fake guest")

    async def stop(self) -> None:
        """Ends it at once and waits for that. Idempotent; also before ``start``."""
        try:
            self._channel.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # not connected any more: it has ended by itself
        if self._background is None:
            self._channel.close()
            self.ended.set()
            return
        self._background.cancel()
        await self._background.wait()

    async def _serve(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                await self._read(tasks)
                tasks.cancel_scope.cancel()
        except* (OSError, _Gone):
            pass  # the connection's end is the guest's end
        finally:
            self._channel.close()
            self.ended.set()

    async def _read(self, tasks: TaskGroup) -> None:
        decoder = frames.FrameDecoder("host")
        while True:
            try:
                data = self._channel.recv(262_144)
            except BlockingIOError:
                await anyio.wait_readable(self._channel)
                continue
            if not data:
                return
            try:
                for frame in decoder.feed(data):
                    await self._handle(frame, tasks)
            except WireError as error:
                message = wire.FATAL_LAYOUT.encode(wire.Fatal(message=str(error).encode()))
                await self._send(encode_frame(frames.FATAL, 0, message))
                raise _Gone from error

    async def _send(self, data: bytes) -> None:
        # Shielded: a cancelled command must not leave half a frame on the wire that all commands share.
        with anyio.CancelScope(shield=True):
            async with self._writing:
                view = memoryview(data)
                while view:
                    try:
                        view = view[self._channel.send(view) :]
                    except BlockingIOError:
                        await anyio.wait_writable(self._channel)

    async def _handle(self, frame: Frame, tasks: TaskGroup) -> None:
        stream = self._streams.get(frame.stream)
        if frame.type == frames.HELLO:
            await self._hello()
        elif frame.type == frames.PING:
            await self._pong(frame)
        elif frame.type in (frames.RUN, frames.CONNECT):
            await self._open(frame, stream, tasks)
        elif frame.type == frames.KILL_ALL:
            await self._kill_all(frame.stream)
        elif frame.type == frames.LIST:
            known = tuple((s.number, wire.ENDED if s.answer else wire.RUNNING, s.pid) for s in self._streams.values())
            await self._send(
                encode_frame(frames.REPLY, frame.stream, wire.LIST_LAYOUT.encode(wire.ListReply(streams=known)))
            )
        elif stream is not None:
            self._steer(frame, stream)

    def _steer(self, frame: Frame, stream: FakeStream) -> None:
        if frame.type == frames.CLOSE:
            if stream.answer is not None:
                del self._streams[stream.number]
        elif stream.answer is not None:
            return
        elif frame.type == frames.DATA:
            stream.take(frame)
        elif frame.type == frames.CREDIT:
            stream.allow(frame.pipe, wire.decode_credit(frame.payload))
        elif frame.type == frames.KILL:
            stream.end(wire.KILLED, 137)
        elif frame.type == frames.SIGNAL:
            number, _ = wire.decode_signal(frame.payload)
            if number:
                stream.end(wire.SIGNALED, number)

    async def _hello(self) -> None:
        await anyio.sleep(self._faults.boot_delay)
        if self._faults.boot_fails:
            message = wire.FATAL_LAYOUT.encode(wire.Fatal(message=self._faults.boot_fails.encode()))
            await self._send(encode_frame(frames.FATAL, 0, message))
            raise _Gone
        hello = wire.GuestHello(version=self._faults.version, pid=1, machine=b"fake 0")
        await self._send(encode_frame(frames.GUEST_HELLO, 0, wire.GUEST_HELLO_LAYOUT.encode(hello)))

    async def _pong(self, frame: Frame) -> None:
        if self._faults.ping == "lost":
            raise _Gone
        if self._faults.ping != "silent":
            lie = b"?" if self._faults.ping == "lie" else b""
            await self._send(encode_frame(frames.PONG, 0, lie + frame.payload))

    async def _kill_all(self, number: int) -> None:
        running = [stream for stream in self._streams.values() if stream.answer is None]
        for stream in running:
            stream.end(wire.KILLED, 137)
        self._highest = max(self._highest, number)
        reply = wire.KILL_ALL_LAYOUT.encode(wire.KillAllReply(killed=len(running), gone=True))
        await self._send(encode_frame(frames.REPLY, number, reply))

    async def _open(self, frame: Frame, stream: FakeStream | None, tasks: TaskGroup) -> None:
        if stream is not None:
            if stream.answer is not None:
                await self._send(stream.answer)
            return
        if frame.stream <= self._highest:
            await self._refuse(frame.stream, "forgotten", "this stream was closed")
            return
        self._highest = frame.stream
        self._asked += 1
        if frame.type == frames.CONNECT:
            asked = wire.CONNECT_LAYOUT.decode(frame.payload)
            if asked.tcp != ECHO_PORT:
                await self._refuse(frame.stream, "connect", f"only port {ECHO_PORT} listens here", 111)
                return
            run = wire.Run(kind=wire.ARGV, args=(b"mirror",), channel=True, window=asked.window)
        else:
            run = wire.RUN_LAYOUT.decode(frame.payload)
        pid = 0 if frame.type == frames.CONNECT else frame.stream + 100
        opened = self._streams[frame.stream] = FakeStream(frame.stream, pid, run, self._send)
        tasks.start_soon(self._serve_stream, opened, self._asked == self._faults.at)

    async def _refuse(self, number: int, step: str, message: str, errno: int = 0) -> None:
        refused = wire.Refused(step=step.encode(), errno=errno, message=message.encode())
        await self._send(encode_frame(frames.REFUSED, number, wire.REFUSED_LAYOUT.encode(refused)))

    async def _serve_stream(self, stream: FakeStream, faulty: bool) -> None:
        faults = self._faults
        if faulty and faults.silent:
            return
        started = wire.STARTED_LAYOUT.encode(wire.Started(pid=stream.pid))
        await self._send(encode_frame(frames.STARTED, stream.number, started))
        if faulty and faults.lie is not None:
            for piece in lies.bytes_of(faults.lie, stream.number, stream.run.window):
                await self._send(piece)
            return
        if faulty and faults.lost:
            cut = encode_frame(frames.GUEST_DATA, stream.number, b"some output", pipe=frames.STDOUT)
            await self._send(cut if faults.lost == "command" else cut[:-4])
            raise _Gone
        begun = anyio.current_time()
        end = await self._run(stream, faults.late if faulty else 0.0)
        if faulty:
            self.oom_kills += faults.oom_kills
            self.denials += faults.denials
        for pipe in stream.pipes():
            await self._send(encode_frame(frames.GUEST_DATA, stream.number, b"", pipe=pipe, flags=frames.EOF))
        payload = wire.END_LAYOUT.encode(
            wire.End(
                how=end.how,
                code=end.code,
                errno=end.errno,
                result=end.result,
                elapsed_us=int((anyio.current_time() - begun) * 1_000_000),
                produced=(stream.produced[0], stream.produced[1], stream.produced[2]),
                gone=True,
            )
        )
        stream.answer = encode_frame(frames.END, stream.number, payload)
        await self._send(stream.answer)

    async def _run(self, stream: FakeStream, late: float) -> wire.End:
        """Runs it until it ends or is ended; only how, code, errno and result of the answer are set."""
        run = stream.run
        if run.deadline_ms:
            stream.scope.deadline = anyio.current_time() + run.deadline_ms / 1000 + late
        try:
            with stream.scope:
                return await self._body(stream)
        except OutputLimitPassed:
            return wire.End(how=wire.OUTPUT_LIMIT, code=137)
        except program.ProgramDied as died:
            return wire.End(how=wire.SIGNALED, code=died.signal)
        if stream.ended_by is not None:
            return wire.End(how=stream.ended_by[0], code=stream.ended_by[1])
        return wire.End(how=wire.EXITED, code=0) if late else wire.End(how=wire.DEADLINE, code=137)

    async def _body(self, stream: FakeStream) -> wire.End:
        run = stream.run
        if run.kind == wire.FILE:
            data = b""
            while piece := await stream.receive(frames.STDIN):
                data += piece
            errno, result, out = self._files.answer(run, data)
            if run.file_op == wire.READ_TREE and self._faults.tree is not None:
                out, result = self._faults.tree
            await stream.write(frames.STDERR if errno else frames.STDOUT, out)
            return wire.End(how=wire.EXITED, code=0, errno=errno, result=result)
        command = program.FakeCommand(
            args=[os.fsdecode(arg) for arg in run.args],
            env=dict(os.fsdecode(pair).split("=", 1) for pair in run.env),
            write=stream.write,
            receive=stream.receive,
        )
        code = await program.run(command, self._programs, shell=run.kind == wire.SHELL)
        return wire.End(how=wire.EXITED, code=code)
