"""Runs in the grader sandbox, which never runs candidate code: one server, and one forked child for each candidate.

A child has the tests and sees of the candidate only the answers that ``plain`` decodes. It alone says the verdict:

    passed  the tests ran to their end        failed  they did not, or an answer was an exit or not plain data
    gone    they needed an answer, and none will come           again   they did not call in the planned order
    broken  the tests themselves are unusable
"""

from __future__ import annotations

import posix
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from types import TracebackType
    from typing import Any, NoReturn

    from proofbox.verify.inside.channel import EXCEPTIONS, Channel
    from proofbox.verify.inside.plain import Malformed, NotPlain, decode, encode

MEMORY = 1 << 30
"""Address space of one child, in bytes: an answer can make a test build something huge (``[0] * answer``)."""


class Over(BaseException):
    """The verdict is known. Not an ``Exception``, so that the ``except Exception`` of a test does not hide it."""


class Exam:
    """The tests of one task against one candidate."""

    def __init__(self, channel: Channel, planned: list[bytes]) -> None:
        self.channel = channel
        self.planned = planned
        self.calls = 0
        self.verdict: tuple[str, str] | None = None
        self.last = ""
        self.raised: BaseException | None = None

    def end(self, word: str, reason: str) -> NoReturn:
        """Ends the tests with this verdict. The first one stands."""
        # Kept here too: a bare ``except:`` in a test can swallow the exception but not the verdict.
        if self.verdict is None:
            self.verdict = (word, reason)
        raise Over

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """What the tests know as the candidate."""
        if self.verdict is not None:
            raise Over
        try:
            payload = encode((args, kwargs))
        except NotPlain as error:
            self.end("broken", f"call {self.calls + 1} of the tests passes {error}")
        if self.calls < len(self.planned):
            if payload != self.planned[self.calls]:
                self.end("again", "")
        else:
            self.channel.send(b"L", payload)
        self.calls += 1
        return self.result(args, kwargs)

    def result(self, args: Any, kwargs: Any) -> Any:
        """Waits for the answer to the latest call and does what it says: returns, or raises."""
        frame = self.channel.receive()
        if frame is None or frame[0] != b"A":
            self.end("gone", f"call {self.calls}")
        try:
            reply = decode(frame[1])
        except Malformed as error:
            self.end("failed", f"call {self.calls} was answered with bytes that are no value: {error}")
        if type(reply) is tuple and len(reply) == 3 and reply[0] == "ok":
            self.apply(args, kwargs, reply[2])
            self.last = f"call {self.calls} returned {shown(reply[1])}"
            return reply[1]
        if type(reply) is tuple and len(reply) == 2 and reply[0] == "unfit" and type(reply[1]) is str:
            self.end("failed", f"call {self.calls} {reply[1][:300]}")
        if type(reply) is tuple and len(reply) == 4 and reply[0] == "raised":
            self.throw(*reply[1:])
        return self.end("failed", f"call {self.calls} was answered with what no call returns")

    def apply(self, args: Any, kwargs: Any, changed: Any) -> None:
        """Puts what the function did to its arguments into the tests' own objects."""
        if type(changed) is not dict:
            self.end("failed", f"call {self.calls} was answered with what no call returns")
        for place, new in changed.items():
            known = type(place) is int and 0 <= place < len(args)
            old = args[place] if known else kwargs.get(place)
            if type(old) is not type(new) or not isinstance(old, (list, dict, set, bytearray)):
                self.end("failed", f"call {self.calls} was answered with a change to no argument")
            if isinstance(old, (list, bytearray)):
                old[:] = new
            else:
                old.clear()
                old.update(new)

    def throw(self, name: Any, args: Any, text: Any) -> NoReturn:
        """Raises what the candidate raised, as the built-in exception of that name."""
        import builtins

        if type(name) is not str or type(args) is not tuple or type(text) is not str:
            self.end("failed", f"call {self.calls} was answered with what no call raises")
        self.last = f"call {self.calls} raised {text[:300]}"
        if name not in EXCEPTIONS:
            self.end("failed", self.last)
        kind = getattr(builtins, name)
        try:
            self.raised = kind(*args)
        except (TypeError, ValueError):  # UnicodeDecodeError wants five arguments of certain types
            self.end("failed", self.last)
        raise self.raised

    def run(self, prompt: str, test: str, entry_point: str) -> tuple[str, str]:
        """Runs the tests to their end. Helpers are those of the prompt; the function under test is the candidate's."""
        namespace: dict[str, Any] = {}
        try:
            exec(helpers(prompt), namespace)  # noqa: S102 - the tests are ours
            namespace[entry_point] = self.call
            exec(compile(test, "<tests>", "exec", dont_inherit=True), namespace)  # noqa: S102
            if not callable(namespace.get("check")):
                return "broken", "the tests define no function check(candidate)"
            namespace["check"](self.call)
        except Over:
            pass
        except BaseException as error:  # noqa: BLE001 - any way out but the end of the tests is a failure
            return self.verdict or self.explain(error, test)
        if self.verdict is not None:
            return self.verdict
        if self.calls < len(self.planned):
            return "again", ""
        return ("passed", "") if self.calls else ("broken", "the tests ended without one call of the candidate")

    def explain(self, error: BaseException, test: str) -> tuple[str, str]:
        """An exception out of the tests: where, what, and what the last call gave."""
        what = f"{type(error).__name__}: {str(error)[:200]}" if str(error) else type(error).__name__
        if not self.calls:
            return "broken", f"the tests raised before they called the candidate: {what}"
        if error is self.raised:
            return "failed", self.last
        line = line_of(error.__traceback__)
        lines = test.split("\n")
        text = lines[line - 1].strip()[:200] if 0 < line <= len(lines) else ""
        return "failed", f"line {line} of the tests: {text} ({what}; {self.last})"


def shown(value: Any) -> str:
    """At most 120 characters of it, for a person."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of more than 4,300 digits
        return f"a large {type(value).__name__}"
    return text if len(text) <= 120 else text[:117] + "..."


def line_of(traceback: TracebackType | None) -> int:
    """The innermost line of the tests, from 1; 0 if they were not in it."""
    line = 0
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<tests>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def helpers(prompt: str) -> Any:
    """The prompt as a program of its own: as it is, or with an empty body for the function it leaves open."""
    for text in (prompt, prompt.rstrip() + "\n    pass\n"):
        try:
            return compile(text, "<prompt>", "exec", dont_inherit=True)
        except SyntaxError as error:
            problem = error
    raise problem


def grade(channel: Channel) -> None:
    """One child: reads the tests, runs them, says the verdict."""
    import math
    import resource

    frame = channel.receive()
    if frame is None or frame[0] != b"T":
        return
    prompt, test, entry_point, planned, seconds = decode(frame[1])
    # A candidate's answers can make the tests compute without end; the kernel's clock of this process ends that.
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds) + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    verdict = Exam(channel, planned).run(prompt, test, entry_point)
    channel.send(b"V", encode(verdict))


class Server:
    """Accepts, forks, and tells of children that died by a signal."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.children: dict[int, socket.socket] = {}

    def reap(self, *_: object) -> None:
        """Collects the children that have ended; speaks for those that could not. The handler of SIGCHLD."""
        while self.children:
            try:
                pid, status = posix.waitpid(-1, posix.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            connection = self.children.pop(pid, None)
            if connection is None:
                continue
            if posix.WIFSIGNALED(status) and posix.WTERMSIG(status) == signal.SIGXCPU:
                self.tell(connection, "failed", "the tests ran out of CPU time on what the candidate returned")
            elif status:
                self.tell(connection, "died", f"wait status {status}")
            connection.close()

    def tell(self, connection: socket.socket, word: str, reason: str) -> None:
        """A verdict in place of a child's, without ever waiting."""
        connection.setblocking(False)
        try:
            Channel(connection.fileno()).send(b"V", encode((word, reason)))
        except OSError:  # the host has already closed it, or does not read: the end of the stream says enough
            return

    def run(self) -> None:
        """Serves without end."""
        signal.signal(signal.SIGCHLD, self.reap)
        while True:
            connection, _ = self.listener.accept()
            # Until the child is noted its end must not be seen.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            try:
                pid = posix.fork()
            except OSError as error:  # no process or no memory left: the host learns it and tries again elsewhere
                self.tell(connection, "died", f"fork: {error.strerror}")
                connection.close()
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
                continue
            if pid == 0:
                self.child(connection.fileno())
            self.children[pid] = connection
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})

    def child(self, fd: int) -> NoReturn:
        """The life of one child, after the fork."""
        status = 1
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            posix.dup2(fd, 3)
            # Other candidates' connections: held here they would not end when the server closes them.
            posix.closerange(4, 65536)
            grade(Channel(3))
            status = 0
        finally:
            posix._exit(status)


def serve(path: str, harness: list[tuple[str, str]]) -> None:
    """Listens on a Unix socket (``@name`` is abstract), then hands the host the candidates' harness, compiled."""
    import gc
    import marshal
    import socket

    # What tests commonly import, loaded once for all children.
    for name in [
        "collections",
        "copy",
        "functools",
        "itertools",
        "math",
        "random",
        "re",
        "resource",
        "string",
        "typing",
    ]:
        __import__(name)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("\0" + path[1:] if path.startswith("@") else path)
    listener.listen(1024)
    code = [compile(text, name, "exec", dont_inherit=True, optimize=2) for name, text in harness]
    Channel(3).send(b"R", marshal.dumps(code))
    posix.close(3)
    gc.collect()
    gc.freeze()
    Server(listener).run()
