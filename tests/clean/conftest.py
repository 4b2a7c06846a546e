"""A template of a few files with one static program in it, and the hosts that sandboxes of it are made on."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.conftest import open_host

from proofbox.model.fingerprint import Fingerprint
from proofbox.model.template import Layer, Template
from proofbox.sandbox.host import Host

DIRECTORIES = ("dev", "home/user", "proc", "root", "run", "sys", "tmp", "usr/lib", "usr/share/data", "var")
FILES = {
    "etc/environment": "",
    "etc/group": "root:x:0:\nuser:x:1000:\n",
    "etc/hosts": "127.0.0.1 localhost sandbox\n",
    "etc/ld.so.cache": "cache\n",
    "etc/machine-id": "",
    "etc/passwd": "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n",
    "etc/resolv.conf": "",
    "etc/timezone": "Etc/UTC\n",
    "usr/lib/python3/module.py": "x = 1\n",
    "usr/share/data/one": "one\n",
    "usr/share/thing": "of the template\n",
}


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``dirty.c``, built."""
    made = tmp_path_factory.mktemp("program") / "dirty"
    source = Path(__file__).with_name("dirty.c")
    words = [os.environ.get("CC", "cc"), "-static", "-O1", "-s", "-Wall", "-Wextra", "-Werror", str(source), "-o"]
    subprocess.run([*words, str(made)], check=True)
    return made


def make_template(root: Path, program: Path, name: str = "small") -> Template:
    """A root file system at ``root`` that anybody may read, with ``program`` as /bin/dirty."""
    root.mkdir()
    for above in (root, *root.parents):
        if above.stat().st_uid == os.geteuid() and not above.stat().st_mode & stat.S_IXOTH:
            above.chmod(0o755)
    for directory in DIRECTORIES:
        (root / directory).mkdir(parents=True)
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
        (root / path).chmod(0o644)
    (root / "etc/localtime").symlink_to("/usr/share/zoneinfo/Etc/UTC")
    (root / "tmp").chmod(0o1777)
    (root / "bin").mkdir()
    (root / "bin/dirty").write_bytes(program.read_bytes())
    (root / "bin/dirty").chmod(0o755)
    # The clock of files ticks: what was made in the tick in which a sandbox was, may be taken for its own.
    time.sleep(0.02)
    digest = f"sha256:{name.encode().hex():0<64}"
    return Template(digest=digest, name=name, layers=(Layer("/", str(root)),), env={"PATH": "/bin"}, user="root")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory, program: Path) -> Template:
    """One for all tests: each of them may dirty sandboxes of it as it likes."""
    return make_template(tmp_path_factory.mktemp("template") / "root", program)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The event loop of these tests."""
    return "asyncio"


@pytest.fixture(scope="module", params=["native", "crun"])
async def host(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Host]:
    """Each of the runtimes that this machine has."""
    async with open_host(request.param) as found:
        yield found


@pytest.fixture(scope="module")
async def expected(host: Host, template: Template) -> Fingerprint:
    """What every sandbox of the template is before anything runs in it, in full."""
    async with host.open_sandbox(template) as box:
        return await box.fingerprint(full=True)
