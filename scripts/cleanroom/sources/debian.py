"""Debian packages from the archives that the machine's apt is configured to use, or from a snapshot service."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import requests

from cleanroom.errors import FetchError
from cleanroom.lock import Entry, Kind
from cleanroom.sources import BLOCK, Gone, Part, Unreachable
from cleanroom.sources.apt import Archives, ca_info, configured_archives, proxies
from cleanroom.sources.download import TIMEOUT, Sessions, ca_bundle, download

SNAPSHOT = "CLEANROOM_DEBIAN_SNAPSHOT"
"""Environment variable: root address of a snapshot service, which keeps what the archive has dropped."""

SECURITY_POOL = "pool/updates/"


class DebianSource:
    """Packages by their pool path. `epoch` (seconds, the lock's) is the date to ask a snapshot service for."""

    kind: Kind = "debian"

    def __init__(self, epoch: int, archives: Archives | None = None) -> None:
        self.epoch = epoch
        self.archives = archives or configured_archives()
        self._sessions = Sessions(ca_bundle(ca_info()), proxies())

    def fetch(self, entry: Entry, part: Part) -> None:
        """Try each configured archive, then the snapshot service if one is configured."""
        roots = [*self._roots(entry), *self._snapshots(entry)]
        if not roots:
            raise FetchError(
                "apt on this machine is not configured for a Debian archive.",
                means=f"{entry} is fetched from the mirror that apt's sources name.",
                next_step="configure apt for Debian, or bring the store from a machine that has it",
            )
        unreachable: Unreachable | None = None
        for root in roots:
            try:
                return self._receive(f"{root.rstrip('/')}/{quote(entry.file, safe='/+~:')}", part)
            except Gone:
                continue
            except Unreachable as error:
                unreachable = unreachable or error
        if unreachable is not None:
            raise unreachable
        raise Gone(entry.file)

    def explain(self, entry: Entry) -> str:
        """The versions in the package's pool folder now, read from its listing."""
        folder, _, file = entry.file.rpartition("/")
        package, _, architecture = file.rpartition("_")
        pattern = re.compile(rf"{re.escape(package.partition('_')[0])}_([^_/\"<>]+)_{re.escape(architecture)}")
        found: list[str] = []
        for root in self._roots(entry):
            for name in self._listing(f"{root.rstrip('/')}/{folder}/"):
                if (match := pattern.fullmatch(name)) and match[1] not in found:
                    found.append(match[1])
        if not found:
            return "The mirror does not say which version it has now."
        hint = "" if os.environ.get(SNAPSHOT) else f" (or set {SNAPSHOT} to a Debian snapshot service, which keeps old versions)"
        return f"The mirror now has {', '.join(found)}{hint}."

    def _roots(self, entry: Entry) -> Iterator[str]:
        main, security = (tuple(_addresses(part)) for part in (self.archives.main, self.archives.security))
        first, second = (security, main) if entry.file.startswith(SECURITY_POOL) else (main, security)
        yield from first
        yield from second

    def _snapshots(self, entry: Entry) -> Iterator[str]:
        service = os.environ.get(SNAPSHOT, "").rstrip("/")
        if service:
            archive = "debian-security" if entry.file.startswith(SECURITY_POOL) else "debian"
            yield f"{service}/archive/{archive}/{datetime.fromtimestamp(self.epoch, UTC):%Y%m%dT%H%M%SZ}"

    def _receive(self, url: str, part: Part) -> None:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https"):
            download(self._sessions.get(), url, part)
        elif parts.scheme in ("file", "copy"):
            _copy(Path(unquote(parts.path)), part)
        else:
            raise Unreachable(f"apt's method {parts.scheme!r} is not supported for fetching; http, https and file are")

    def _listing(self, url: str) -> Sequence[str]:
        parts = urlsplit(url)
        if parts.scheme in ("file", "copy"):
            folder = Path(unquote(parts.path))
            return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else ()
        try:
            answer = self._sessions.get().get(url, timeout=TIMEOUT)
        except requests.RequestException:
            return ()
        links = re.findall(r'href="([^"?#]+)"', answer.text) if answer.ok else []
        return [unquote(link).rsplit("/", 1)[-1] for link in links]


def _copy(source: Path, part: Part) -> None:
    if not source.is_file():
        raise Gone(str(source))
    part.restart()
    with source.open("rb") as stream:
        while block := stream.read(BLOCK):
            part.write(block)


def _addresses(uris: Sequence[str]) -> Iterator[str]:
    """Plain addresses: apt's mirror method names a file of them (cloud images come with one)."""
    for uri in uris:
        if not uri.startswith("mirror+file:"):
            yield uri
            continue
        listed = Path("/" + uri.partition(":")[2].lstrip("/"))
        try:
            lines = listed.read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        yield from (line.split()[0] for line in lines if line.strip() and not line.startswith("#"))
