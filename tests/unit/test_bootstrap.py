"""Root file systems from locked packages: what can be said without making one."""

from pathlib import Path

import pytest

from cleanroom import bootstrap
from cleanroom.bootstrap import base_layout, differences, installed_packages
from cleanroom.console import Console
from cleanroom.errors import EngineError
from cleanroom.lock import Entry, Lock
from cleanroom.store import Store

STATUS = """Package: dash
Essential: yes
Status: install ok installed
Version: 0.5.12-12
Description: shell
 Package: not this one

Package: gone
Status: deinstall ok config-files
Version: 1.0

Package: tar
Status: install ok installed
Version: 1:1.35+dfsg-3.1
"""


def entry(name: str, version: str = "1.0", sha256: str = "a" * 64) -> Entry:
    return Entry("base", "debian", name, version, f"pool/{name}_{version}_amd64.deb", 10, sha256)


def lock(*entries: Entry, epoch: int = 1_700_000_000) -> Lock:
    return Lock("sm100", "debian13", "sha256:0", epoch, (), entries)


def test_only_installed_packages_count_and_their_full_version(tmp_path: Path) -> None:
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text(STATUS)
    assert installed_packages(tmp_path) == {"dash": "0.5.12-12", "tar": "1:1.35+dfsg-3.1"}


def test_each_difference_from_the_lock_is_named() -> None:
    assert differences({"a": "1"}, {"a": "1"}) == ()
    assert differences({"a": "1", "b": "2", "c": "3"}, {"b": "2", "c": "4", "d": "5"}) == (
        "a 1 is locked but was not installed",
        "c is locked as 3 but 4 was installed",
        "d 5 was installed but is not locked",
    )


def test_what_decides_the_bytes_decides_the_key() -> None:
    packages = [entry("a"), entry("b")]
    key = bootstrap._key("base", packages, 1)
    assert key == bootstrap._key("base", packages[::-1], 1)
    assert key != bootstrap._key("base", packages, 2)
    assert key != bootstrap._key("engine", packages, 1)
    assert key != bootstrap._key("base", [entry("a"), entry("b", sha256="b" * 64)], 1)


def test_a_lock_without_packages_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no packages for the base"):
        base_layout(lock(), "linux/amd64", Store(tmp_path), Console())


def test_without_root_it_says_what_needs_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(EngineError, match="needs root"):
        base_layout(lock(entry("dash")), "linux/amd64", Store(tmp_path), Console())


def test_a_missing_tool_is_named_with_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="mmdebstrap, apt-ftparchive, unshare, setpriv not found") as caught:
        base_layout(lock(entry("dash")), "linux/amd64", Store(tmp_path), Console())
    assert "apt-get install" in caught.value.next_step


def test_nothing_of_the_machine_or_the_moment_stays(tmp_path: Path) -> None:
    for name in (
        "etc/hostname",
        "etc/resolv.conf",
        "etc/apt/sources.list",
        "etc/apt/sources.list.d/debian.sources",
        "etc/passwd-",
        "var/log/dpkg.log",
        "var/log/apt/history.log",
        "var/cache/apt/archives/lock",
        "var/cache/ldconfig/aux-cache",
        "var/lib/apt/lists/lock",
        "var/lib/dpkg/status-old",
        "tmp/left",
        "etc/passwd",
        "var/lib/dpkg/status",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("of this machine")
    bootstrap._remove_traces(tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file() and path.read_text()}
    assert left == {"etc/passwd", "var/lib/dpkg/status"}
    assert (tmp_path / "etc/machine-id").read_text() == ""
    assert (tmp_path / "etc/hostname").stat().st_mode & 0o777 == 0o644
