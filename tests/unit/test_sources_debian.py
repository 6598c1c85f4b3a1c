"""Debian packages: which archives apt is configured for, where a package is looked for, what is said when it has gone."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fileserver import Served, serving

from cleanroom.console import Console
from cleanroom.errors import FetchError
from cleanroom.fetch import receive
from cleanroom.lock import Entry
from cleanroom.sources import download
from cleanroom.sources.apt import Archives, configured_archives, read_source_lines, read_sources, read_stanza
from cleanroom.sources.debian import SNAPSHOT, DebianSource
from cleanroom.store import Store

EPOCH = int(datetime(2026, 11, 30, 1, 2, 3, tzinfo=UTC).timestamp())
CONTENT = b"a package"
FILE = "pool/main/e/elfutils/libdw-dev_0.192-4+b1~x_amd64.deb"


def package(file: str = FILE) -> Entry:
    return Entry("build", "debian", "libdw-dev", "0.192-4+b1~x", file, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(download, "PAUSES", ())
    monkeypatch.delenv(SNAPSHOT, raising=False)
    with serving() as served:
        yield served


def get(source: DebianSource, entry: Entry, folder: Path) -> Store:
    store = Store(folder / "store")
    console = Console(stream=io.StringIO())
    receive([entry], {"debian": source}, store, console, title="Fetching", lock_again="nox -s lock -- sm100")
    store.check(entry)
    return store


def archives_of(server: Served) -> Archives:
    return Archives((f"{server.address}/debian/",), (f"{server.address}/debian-security",))


def test_a_package_comes_from_the_archive_whose_pool_it_is_in(server: Served, tmp_path: Path) -> None:
    security = "pool/updates/main/e/elfutils/libdw-dev_0.192-4_amd64.deb"
    server.files = {f"/debian/{FILE}": CONTENT, f"/debian-security/{security}": CONTENT}
    get(DebianSource(EPOCH, archives_of(server)), package(), tmp_path / "1")
    get(DebianSource(EPOCH, archives_of(server)), package(security), tmp_path / "2")
    assert [path for path, _ in server.requests] == [f"/debian/{FILE}", f"/debian-security/{security}"]


def test_a_superseded_package_is_tried_at_the_snapshot_service(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files = {f"/snapshot/archive/debian/20261130T010203Z/{FILE}": CONTENT}
    monkeypatch.setenv(SNAPSHOT, f"{server.address}/snapshot/")
    get(DebianSource(EPOCH, archives_of(server)), package(), tmp_path)


def test_a_package_that_has_gone_says_which_version_is_there_and_what_to_type(server: Served, tmp_path: Path) -> None:
    names = ["libdw-dev_0.192-5_amd64.deb", "libdw-dev_0.192-5_arm64.deb", "libdw1_9_amd64.deb", "libdw-dev_0.193%2B1_amd64.deb"]
    page = "".join(f'<a href="{name}">{name}</a>' for name in names)
    server.files = {f"/debian/{FILE.rpartition('/')[0]}/": page.encode()}
    with pytest.raises(FetchError) as raised:
        get(DebianSource(EPOCH, archives_of(server)), package(), tmp_path)
    assert "libdw-dev 0.192-4+b1~x" in raised.value.what
    assert "The mirror now has 0.192-5, 0.193+1" in raised.value.means
    assert SNAPSHOT in raised.value.means
    assert raised.value.next_step.startswith("nox -s lock -- sm100")


def test_a_local_mirror_and_a_list_of_mirrors_work(server: Served, tmp_path: Path) -> None:
    place = tmp_path / "mirror" / FILE
    place.parent.mkdir(parents=True)
    place.write_bytes(CONTENT)
    get(DebianSource(EPOCH, Archives((f"file:{tmp_path}/mirror",), ())), package(), tmp_path / "1")
    listed = tmp_path / "mirrors.list"
    listed.write_text(f"# mirrors\n\n{server.address}/debian\tpriority:1\n")
    server.files = {f"/debian/{FILE}": CONTENT}
    get(DebianSource(EPOCH, Archives((f"mirror+file:{listed}",), ())), package(), tmp_path / "2")


def test_a_machine_without_an_archive_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SNAPSHOT, raising=False)
    with pytest.raises(FetchError, match="not configured for a Debian archive"):
        get(DebianSource(EPOCH, Archives((), ())), package(), tmp_path)


ONE_LINE = """
# deb http://commented.example/debian trixie main
deb-src http://source.example/debian trixie main
deb [arch=amd64 signed-by=/k.gpg] http://other.example/apt trixie main
deb http://mirror.example/debian bookworm main contrib  # the mirror
deb http://mirror.example/debian bookworm-updates main
deb http://security.example/debian-security bookworm-security main
"""

DEB822 = """# the mirror
Types: deb deb-src
URIs: http://mirror.example/debian/ http://second.example/debian
Suites: trixie trixie-updates
# in the middle
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://security.example/debian-security/
Suites: trixie-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .

Enabled: no
Types: deb
URIs: http://disabled.example/debian
Suites: trixie
Components: main

Types: deb
URIs: http://vendor.example/debian
Suites: trixie
Components: stable
"""


def archives_from(folder: Path, monkeypatch: pytest.MonkeyPatch, *, lines: str = "", deb822: str = "") -> Archives:
    (folder / "etc/apt/sources.list.d").mkdir(parents=True)
    (folder / "etc/apt/sources.list").write_text(lines)
    (folder / "etc/apt/sources.list.d/debian.sources").write_text(deb822)
    (folder / "apt.conf").write_text(f'Dir::Etc "{folder}/etc/apt/";\n')
    monkeypatch.setenv("APT_CONFIG", str(folder / "apt.conf"))
    return configured_archives()


def test_one_line_sources_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = archives_from(tmp_path, monkeypatch, lines=ONE_LINE)
    assert found == Archives(("http://mirror.example/debian",), ("http://security.example/debian-security",))
    assert next(s.uris[0] for s in read_source_lines(ONE_LINE)) == "http://other.example/apt"


def test_deb822_sources_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = archives_from(tmp_path, monkeypatch, deb822=DEB822)
    assert found.main == ("http://mirror.example/debian/", "http://second.example/debian")
    assert found.security == ("http://security.example/debian-security/",)
    assert "http://disabled.example/debian" not in [s.uris[0] for s in read_sources(DEB822)]


def test_a_vendor_with_a_debian_suite_is_not_taken_for_debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "deb http://vendor.example/apt stable main\n"
    assert archives_from(tmp_path, monkeypatch, lines=lines) == Archives((), ())


def test_a_stanza_without_a_hash_is_no_package() -> None:
    stanza = "Package: a\nVersion: 1\nFilename: pool/a.deb\nSize: 3\n"
    assert read_stanza(stanza) is None
    found = read_stanza(f"{stanza}SHA256: {'0' * 64}\n")
    assert found is not None
    assert (found.name, found.version, found.size) == ("a", "1", 3)
