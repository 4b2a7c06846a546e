"""Runs in the candidate's sandbox: loads the program and calls its function when told to.

Everything here shares a process with hostile code. It decides nothing; it only has to serve honest code well.
"""

from __future__ import annotations

import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from proofbox.verify.inside.channel import EXCEPTIONS, Channel
    from proofbox.verify.inside.plain import NotPlain, decode, encode

HIDDEN = 200
"""The channel moves here from descriptor 3, so that a program that uses low descriptors does not meet it by chance."""


class SitePackages:
    """Last on ``sys.meta_path``: the first import that the standard library cannot serve brings in ``site``.

    The interpreter starts with ``-S``, which saves milliseconds, and still finds installed packages.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Asked once, for the first module that nobody else found."""
        sys.meta_path.remove(self)
        import site
        from importlib.machinery import PathFinder

        site.main()
        return PathFinder.find_spec(name, path, target)


def type_name(error: BaseException) -> str:
    """The name of its class, which may be the candidate's own and lie."""
    name = type(error).__name__
    return name[:80] if type(name) is str else "?"


def text_of(error: BaseException) -> str:
    """At most 500 characters of its text, "" if it has none to give."""
    try:
        return str.__str__(str(error))[:500]
    except BaseException:  # noqa: BLE001 - the exception is of the candidate's own class
        return ""


def raised(error: BaseException) -> bytes:
    """The answer for an exception: the nearest base that a test can expect ("" for an exit), args, a line."""
    import builtins

    name = ""
    if isinstance(error, Exception):
        known = {getattr(builtins, name): name for name in EXCEPTIONS}
        name = next((known[base] for base in type(error).__mro__ if base in known), "Exception")
    text = f"{type_name(error)}: {text_of(error)}"
    try:
        args = encode(error.args)
        return encode(("raised", name, decode(args) if len(args) < 4096 else (text_of(error),), text))
    except NotPlain:
        return encode(("raised", name, (text_of(error),), text))


def changes(before: bytes, args: Any, kwargs: Any) -> dict[Any, Any]:
    """The arguments that the function changed in place, with what they hold now."""
    old_args, old_kwargs = decode(before)
    both = [(place, old, args[place]) for place, old in enumerate(old_args)]
    both += [(name, old, kwargs[name]) for name, old in old_kwargs.items()]
    mutable = (list, dict, set, bytearray)
    return {place: new for place, old, new in both if isinstance(old, mutable) and encode(old) != encode(new)}


def answer(function: Callable[..., Any], payload: bytes, live: bool) -> bytes:
    """Calls the function once; the payload of the answer, whatever the function did."""
    args, kwargs = decode(payload)
    try:
        value = function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - an exit is an answer as well
        return raised(error)
    try:
        reply = encode(("ok", value, {}))
    except NotPlain as error:
        return encode(("unfit", f"returned {error}"))
    if not live:
        return reply
    try:
        changed = changes(payload, args, kwargs)
        return encode(("ok", value, changed)) if changed else reply
    except NotPlain as error:
        return encode(("unfit", f"left in its arguments {error}"))


def load(channel: Channel, text: str, entry_point: str) -> Callable[..., Any] | None:
    """Runs the program in a fresh namespace and finds its function; says so to the host when there is none."""
    namespace: dict[str, Any] = {}
    try:
        exec(compile(text, "<candidate>", "exec", dont_inherit=True), namespace)  # noqa: S102 - what this sandbox is for
    except BaseException as error:  # noqa: BLE001 - whatever it was, the host is told
        line = f" (line {error.lineno})" if type(error) is SyntaxError else ""
        text = f"the program raised {type_name(error)}: {text_of(error)}{line}"
        channel.send(b"B", text.encode("utf-8", "replace"))
        return None
    function = namespace.get(entry_point)
    if not callable(function):
        what = "is not callable" if entry_point in namespace else "is not defined"
        channel.send(b"B", f"{entry_point} {what} after the program has run".encode("utf-8", "replace"))
        return None
    return function  # type: ignore[no-any-return]


def flush() -> None:
    """Sends on what was printed, so that it is there before the answer is."""
    try:
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 - closed or replaced by the candidate: what it printed is not needed
        return


def main(buffered: bytes) -> None:
    """Serves the channel on descriptor 3 until it ends. ``buffered``: what was read of it already."""
    exit_now = posix._exit
    fd = posix.dup2(3, HIDDEN, False)
    posix.close(3)
    channel = Channel(fd, buffered)
    sys.meta_path.append(SitePackages())
    channel.send(b"H")
    frame = channel.receive()
    if frame is None:
        exit_now(0)
    text, entry_point = decode(frame[1])
    function = load(channel, text, entry_point)
    flush()
    if function is None:
        exit_now(0)
    while True:
        frame = channel.receive()
        if frame is None:
            exit_now(0)
        kind, payload = frame
        reply = answer(function, payload, kind == b"L")
        flush()
        channel.send(b"A", reply)
