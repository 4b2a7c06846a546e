"""A real registry on this machine's loopback, and images in it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

CONFIG = """
version: 0.1
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: 127.0.0.1:{port}}}
log: {{level: error, accesslog: {{disabled: false}}}}
"""

PULL = """
import sys
from pathlib import Path
from proofbox.templates.images import pull
from proofbox.templates.store import Store
print(pull(Store(Path(sys.argv[1])), sys.argv[2], sys.argv[3]).digest)
"""


@dataclass
class Registry:
    """A registry that runs, what it has been asked, and how to give it an image."""

    address: str
    log: Path
    process: subprocess.Popen[bytes]

    def push(self, layout: Path, name: str, form: str = "") -> None:
        """Copies a layout's image there, all architectures, or the one in that form."""
        how = f"--format={form}" if form else "--all"
        words = ["skopeo", "--insecure-policy", "copy", how, "--dest-tls-verify=false", f"oci:{layout}"]
        # Without it skopeo looks for credentials in a directory that may be closed to us.
        env = os.environ | {"XDG_RUNTIME_DIR": str(self.log.parent)}
        done = subprocess.run([*words, f"docker://{self.address}/{name}"], capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr

    def blobs_asked(self) -> int:
        """How many blobs it has served."""
        return self.log.read_text().count("GET /v2/app/blobs/")

    def asked_for(self, digest: str) -> int:
        """How often it has served that blob."""
        return self.log.read_text().count(f"GET /v2/app/blobs/{digest} ")

    def end(self) -> None:
        """Ends it."""
        self.process.kill()
        self.process.wait()


def free_port() -> int:
    """One that nobody has now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def answers(address: str, process: subprocess.Popen[bytes]) -> bool:
    """Waits until it does, or has ended."""
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://{address}/v2/", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.02)
    return False


@contextmanager
def serving(top: Path) -> Iterator[Registry]:
    """One that keeps its images in that directory; skips the test where its package or skopeo is not installed."""
    if not shutil.which("docker-registry") or not shutil.which("skopeo"):
        pytest.skip("docker-registry and skopeo are not both installed")
    for _ in range(5):  # another process may take the port meanwhile
        port = free_port()
        (top / "config.yml").write_text(CONFIG.format(root=top / "data", port=port))
        with open(top / "log", "wb") as log:
            words = ["docker-registry", "serve", str(top / "config.yml")]
            process = subprocess.Popen(words, stdout=log, stderr=log)
        found = Registry(f"127.0.0.1:{port}", top / "log", process)
        if answers(found.address, process):
            break
        found.end()
    else:
        pytest.fail(f"docker-registry did not start: {(top / 'log').read_text()[-2000:]}")
    yield found
    found.end()
