"""Templates that were made to lead their own runtime astray."""

from __future__ import annotations

from pathlib import Path

from proofbox.model.limits import Limits
from proofbox.model.template import Layer, Template

DIRECTORIES = ("dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "var")
LIMITS = Limits(disk=8 << 20, inodes=1000)


def make(root: Path, links: dict[str, str], usual: Template | str) -> Template:
    """A root with the /usr of the host or of the ``usual`` template, and links in place of some of its directories.

    Without a digest that one's image is made for each machine, and kept for no other.
    """
    usr, digest = ("/usr", "sha256:0") if isinstance(usual, str) else (f"{usual.layers[0].source}/usr", "")
    for above in (root, *root.parents[:2]):
        above.chmod(above.stat().st_mode | 0o055)
    top = root / "template"
    for name in (*DIRECTORIES, "usr"):
        if name not in links:
            (top / name).mkdir(parents=True)
    if "etc" not in links:
        (top / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    for name in ("bin", "lib", "lib64"):
        (top / name).symlink_to(f"usr/{name}")
    for name, target in links.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).symlink_to(target)
    return Template(digest=digest, name="t", layers=(Layer("/", str(top)), Layer("/usr", usr)), env={})
