"""The built-in template: enough of the host to run programs, nothing that is the host's own business."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from proofbox.templates import host
from proofbox.templates.store import Store

STATUS = "Package: {name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: {version}\n\n"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A made-up host with things in it that must not get into a template."""
    root = tmp_path / "machine"
    for name in (
        "usr/bin",
        "usr/local/bin",
        "etc/apt/sources.list.d",
        "etc/apt/auth.conf.d",
        "etc/ssh",
        "etc/ssl/private",
    ):
        (root / name).mkdir(parents=True)
    for name in ("var/lib/dpkg/info", "home/someone", "root", "run"):
        (root / name).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    (root / "sbin").mkdir()
    (root / "var/lib/dpkg/status").write_text(STATUS.format(name="a", version="1"))
    (root / "var/lib/dpkg/statoverride").write_text("root root 755 /usr/bin/x\nroot ghost 755 /usr/bin/y\n")
    (root / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/bash\nmail:x:8:8::/var/mail:/bin/sh\nsomeone:x:1000:1000::/home/someone:/bin/sh\n"
    )
    (root / "etc/group").write_text("root:x:0:someone\nsomeone:x:1000:\n")
    (root / "etc/shadow").write_text("root:$6$canary:1:::::\n")
    (root / "etc/machine-id").write_text("canary\n")
    (root / "etc/ssh/ssh_host_key").write_text("canary\n")
    (root / "etc/apt/auth.conf.d/a.conf").write_text("machine x login y password canary\n")
    (root / "etc/apt/sources.list").write_text(
        "deb http://deb.example/ main\ndeb https://me:canary@repo.example/ main\n"
    )
    (root / "etc/pip.conf").write_text("[global]\ntimeout = 5\nindex-url = https://u:canary@index.example/simple\n")
    (root / "etc/profile").write_text("export API_KEY=canary\numask 022\n")
    (root / "etc/shells").write_text("canary\n")
    (root / "etc/shells").chmod(0o600)
    (root / "home/someone/.netrc").write_text("canary\n")
    return root


def built(store: Store, root: Path) -> Path:
    """The generated root directory of that machine's template."""
    return Path(host.resolve(store.layers, root).layers[0].source)


def test_nothing_of_the_host_that_is_secret_is_in_it(store: Store, machine: Path) -> None:
    """Keys, hashes, tokens, home directories, files that are not for everybody: no byte of them."""
    made = built(store, machine)
    for directory, _, names in os.walk(made):
        for name in names:
            path = os.path.join(directory, name)
            assert os.path.islink(path) or b"canary" not in Path(path).read_bytes(), path
    assert os.listdir(made / "home") == ["user"]
    assert os.listdir(made / "root") == []
    assert os.listdir(made / "run") == ["lock"]
    assert (made / "etc/apt/sources.list").read_text() == "deb http://deb.example/ main\n"
    assert "someone" not in (made / "etc/passwd").read_text()
    assert "someone" not in (made / "etc/group").read_text()


def test_accounts_are_the_system_ones_and_one_user(store: Store, machine: Path) -> None:
    """root, nobody, the packages' own accounts, and ``user`` 1000; no password works; dpkg knows all its names."""
    made = built(store, machine)
    users = {line.split(":")[0]: line.split(":") for line in (made / "etc/passwd").read_text().splitlines()}
    assert users["user"][2:6] == ["1000", "1000", "", "/home/user"]
    assert users["nobody"][2] == "65534"
    assert users["mail"][6] == "/usr/sbin/nologin"
    assert all(line.split(":")[1] == "*" for line in (made / "etc/shadow").read_text().splitlines())
    assert (made / "var/lib/dpkg/statoverride").read_text() == "root root 755 /usr/bin/x\n"
    if os.geteuid() == 0:
        assert (made / "home/user").stat().st_uid == 1000
        assert (made / "etc/passwd").stat().st_uid == 0


def test_directories_have_the_usual_modes(store: Store, machine: Path) -> None:
    """Whatever the maker's umask: /tmp for everybody, /root for root, set-group-id nowhere."""
    before = os.umask(0o077)
    try:
        made = built(store, machine)
    finally:
        os.umask(before)
    modes = {
        name: stat.S_IMODE((made / name).stat().st_mode) for name in (".", "tmp", "root", "etc", "etc/apt", "proc")
    }
    assert modes == {".": 0o755, "tmp": 0o1777, "root": 0o700, "etc": 0o755, "etc/apt": 0o755, "proc": 0o555}


def test_merged_and_real_directories_are_both_served(store: Store, machine: Path) -> None:
    """A link stays a link; a real /sbin is a layer of its own."""
    template = host.resolve(store.layers, machine)
    made = Path(template.layers[0].source)
    assert os.readlink(made / "bin") == "usr/bin"
    assert [layer.target for layer in template.layers] == ["/", "/usr", "/sbin"]


def test_the_digest_follows_packages_and_local_programs(store: Store, machine: Path) -> None:
    """A new version of a package or another program in /usr/local is another template; nothing new is the same one."""
    first = host.resolve(store.layers, machine)
    assert host.resolve(store.layers, machine) == first
    (machine / "var/lib/dpkg/status").write_text(STATUS.format(name="a", version="2"))
    second = host.resolve(store.layers, machine)
    (machine / "usr/local/bin/mine").write_text("#!/bin/sh\n")
    third = host.resolve(store.layers, machine)
    assert len({first.digest, second.digest, third.digest}) == 3
    assert first.facts["packages"] == "1"


def test_the_order_of_the_package_list_does_not_matter(store: Store, machine: Path, tmp_path: Path) -> None:
    """Two hosts with the same packages have the same list, whatever order they were installed in."""
    one, two = STATUS.format(name="a", version="1"), STATUS.format(name="b", version="1")
    (machine / "var/lib/dpkg/status").write_text(one + two)
    first = host.resolve(store.layers, machine).facts["package_digest"]
    (machine / "var/lib/dpkg/status").write_text(two + one)
    assert host.resolve(store.layers, machine).facts["package_digest"] == first


def test_a_lost_layer_is_built_again(store: Store, machine: Path) -> None:
    """Somebody removed the store's files: the next call mends it."""
    made = built(store, machine)
    made.rename(made.with_name("gone"))
    (made.parent / "gone").rename(store.home / "elsewhere")
    assert (built(store, machine) / "etc/passwd").is_file()


def test_this_host_resolves_to_one_template_in_every_process(store: Store) -> None:
    """Several processes at once: one builds, all get the same, and it has what this machine's programs need."""
    code = (
        "import sys; from pathlib import Path; from proofbox.templates.store import Store\n"
        "print(Store(Path(sys.argv[1])).resolve('host').digest)"
    )
    others = [
        subprocess.Popen([sys.executable, "-c", code, str(store.home)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    digests = {other.communicate()[0].strip() for other in others}
    template = store.resolve("host")
    assert digests == {template.digest}
    made = Path(template.layers[0].source)
    assert (made / "etc/passwd").is_file()
    assert int(template.facts["packages"]) > 0
    assert not list((store.home / "making").iterdir())
