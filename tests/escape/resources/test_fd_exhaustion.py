"""Descriptors, as many as there are: in one process, and in all that a sandbox may have."""

from __future__ import annotations

from tests.escape.conftest import WHOEVER, Inside, Witness
from tests.escape.resources.bombs import enforced, lives

from proofbox.model.limits import Limits

LIMITS = Limits(processes=40, open_files=256)
PROCESSES = 24
ATTEMPT = f"""
import time
near, far = os.pipe()
for _ in range({PROCESSES}):
    if os.fork() == 0:
        os.dup2(far, 0)
        os.closerange(1, 1 << 16)
        held = 0
        try:
            while True:
                os.open('/dev/null', os.O_RDONLY)
                held += 1
        except OSError as error:
            os.write(0, f'{{held}} {{errno.errorcode[error.errno]}}\\n'.encode())
        time.sleep(60)
        os._exit(0)
told = b''
while told.count(b'\\n') < {PROCESSES}:
    told += os.read(near, 4096)
said = told.decode()
"""


@WHOEVER
async def test_descriptors_run_out_inside(inside: Inside, witness: Witness) -> None:
    """Each process has as many as its limit says; the host, and another sandbox, still open files."""
    async with inside.open_box(limits=enforced(inside, LIMITS)) as box:
        most = int((await box.run("ulimit -Hn")).stdout)
        told = (await inside.outcomes({"all": ATTEMPT}, box))["all"].split()
        assert told[1::2] == ["EMFILE"] * PROCESSES
        assert all(int(count) < most for count in told[::2]), told
        assert witness.file.read_text() == witness.secret
        assert await lives(inside.box)
        await box.kill_all()
        assert await lives(box)
