"""Python packages from the machine's index: listing what there is, choosing one file, receiving it.

Of pip's configuration only index-url, cert and proxy count. Extra indexes, find-links and constraints of the machine
must not decide what a lock says. Nothing that is fetched is ever executed, so that no setup.py runs.
"""

from __future__ import annotations

import configparser
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

import requests
import urllib3
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version
from pypi_simple import DistributionPackage, NoSuchProjectError, PyPISimple, UnsupportedContentTypeError

from cleanroom.errors import FetchError, IntegrityError
from cleanroom.lock import Entry, Kind
from cleanroom.sources import Gone, Part, Unreachable
from cleanroom.sources.download import BUSY, PAUSES, TIMEOUT, Sessions, ca_bundle, download, host_of, in_short
from cleanroom.target import MACHINES

_OLDEST_GLIBC = {"x86_64": 5, "aarch64": 17}
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclass(frozen=True)
class PipSettings:
    """What is taken from pip's configuration. Empty: pip's own default."""

    index_url: str = ""
    cert: str = ""
    proxy: str = ""

    def environment(self) -> dict[str, str]:
        """The same settings for uv, as environment variables: a URL may hold a password, and arguments are public."""
        found = {}
        if self.index_url:
            found["UV_DEFAULT_INDEX"] = self.index_url
        if bundle := ca_bundle(self.cert):
            found["SSL_CERT_FILE"] = bundle
        if self.proxy:
            found |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), self.proxy)
        return found


def pip_settings(environment: Mapping[str, str] | None = None) -> PipSettings:
    """Read pip's configuration as pip does: files for all users, the user, the environment; then PIP_* variables."""
    environment = os.environ if environment is None else environment
    values: dict[str, str] = {}
    for path in _pip_files(environment):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError, OSError):
            continue  # pip itself will say so; the defaults are safe
        for section in ("global", "install"):
            if parser.has_section(section):
                values |= {name.replace("_", "-"): value for name, value in parser.items(section)}
    for name in ("index-url", "cert", "proxy"):
        if value := environment.get(f"PIP_{name.upper().replace('-', '_')}"):
            values[name] = value
    return PipSettings(values.get("index-url", "").strip(), values.get("cert", "").strip(), values.get("proxy", "").strip())


def _pip_files(environment: Mapping[str, str]) -> Iterator[Path]:
    chosen = environment.get("PIP_CONFIG_FILE", "")
    if chosen == os.devnull:
        return
    home = Path(environment.get("HOME") or Path.home())
    for folder in reversed((environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)):
        yield Path(folder) / "pip/pip.conf"
    yield Path("/etc/pip.conf")
    yield home / ".pip/pip.conf"
    yield Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf"
    yield Path(sys.prefix) / "pip.conf"
    if chosen:
        yield Path(chosen)


@dataclass(frozen=True)
class File:
    """One file of a project on the index. `size` and `sha256` are None where the index does not tell."""

    name: str
    url: str
    size: int | None
    sha256: str | None
    requires_python: str


class Index:
    """The machine's package index. Pages are asked for once; may be used from several threads."""

    def __init__(self, settings: PipSettings | None = None) -> None:
        self.settings = settings if settings is not None else pip_settings()
        self._url, self._auth = _without_login(self.settings.index_url)
        if self._url and not self._url.startswith(("http://", "https://")):
            raise FetchError(
                f"pip's index-url is {host_of(self._url) or self._url}, which is not an http(s) address.",
                means="Files are received from a package index over HTTP.",
                next_step="set PIP_INDEX_URL to an http(s) index for this command",
            )
        proxy = self.settings.proxy
        self._sessions = Sessions(ca_bundle(self.settings.cert), {"http": proxy, "https": proxy} if proxy else {})
        self._pages: dict[str, tuple[File, ...]] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    @property
    def shown(self) -> str:
        """The index as it may be printed."""
        return host_of(self._url) if self._url else "the default index"

    def files(self, project: str) -> tuple[File, ...]:
        """All files of a project; empty if the index has no such project. Raises Unreachable."""
        name = canonicalize_name(project)
        with self._guard:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            if name not in self._pages:
                self._pages[name] = tuple(_file(p) for p in self._page(name))
            return self._pages[name]

    def _page(self, name: str) -> Sequence[DistributionPackage]:
        arguments = {"endpoint": self._url} if self._url else {}
        client = PyPISimple(session=self._sessions.get(), auth=self._auth, **arguments)
        reason = ""
        for pause in (0.0, *PAUSES):
            threading.Event().wait(pause)
            try:
                return client.get_project_page(name, timeout=TIMEOUT).packages
            except NoSuchProjectError:
                return ()
            except requests.HTTPError as error:
                reason = f"it answers {error.response.status_code}"
                if error.response.status_code not in BUSY:
                    break
            except UnsupportedContentTypeError:
                reason = "it does not answer as a package index does"
                break
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                reason = in_short(error)
        raise Unreachable(f"{self.shown}: {reason}")

    def receive(self, file: File, part: Part) -> None:
        """Receive one file; the index's login is given to the index's own server only."""
        auth = self._auth if self._url and host_of(file.url) == host_of(self._url) else None
        download(self._sessions.get(), file.url, part, auth=auth)

    def size_of(self, file: File) -> int | None:
        """The size in bytes: the index's, else what the file's server says, else None."""
        if file.size is not None:
            return file.size
        session = self._sessions.get()
        try:
            answer = session.head(file.url, timeout=TIMEOUT, allow_redirects=True, headers={"Accept-Encoding": "identity"})
        except requests.RequestException as error:
            raise Unreachable(f"{host_of(file.url)}: {in_short(error)}") from None
        return int(answer.headers["Content-Length"]) if answer.ok and "Content-Length" in answer.headers else None


def _file(package: DistributionPackage) -> File:
    digests = package.digests or {}
    return File(
        package.filename,
        package.url.split("#", 1)[0],
        package.size,
        digests.get("sha256"),
        package.requires_python or "",
    )


def _without_login(url: str) -> tuple[str, tuple[str, str] | None]:
    if not url:
        return "", None
    parts = urlsplit(url if url.endswith("/") else url + "/")
    if parts.username is None:
        return urlunsplit(parts), None
    plain = parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1])
    return urlunsplit(plain), (unquote(parts.username), unquote(parts.password or ""))


def supported_tags(python: str, glibc: str, platform: str) -> Mapping[Tag, int]:
    """Every wheel tag that CPython `python` on Linux with this glibc installs, with its rank (0 is best)."""
    major, minor = (int(n) for n in python.split(".")[:2])
    machine = MACHINES[platform]
    newest = int(glibc.split(".")[1])
    platforms = []
    for number in range(newest, _OLDEST_GLIBC[machine] - 1, -1):
        platforms.append(f"manylinux_2_{number}_{machine}")
        if number in _LEGACY:
            platforms.append(f"{_LEGACY[number]}_{machine}")
    platforms.append(f"linux_{machine}")
    abi = f"cp{major}{minor}"
    ordered = [
        *cpython_tags((major, minor), abis=[abi], platforms=platforms),
        *compatible_tags((major, minor), interpreter=abi, platforms=platforms),
    ]
    ranks: dict[Tag, int] = {}
    for rank, tag in enumerate(ordered):
        ranks.setdefault(tag, rank)
    return ranks


def best_wheel(files: Iterable[File], project: str, version: str, tags: Mapping[Tag, int]) -> File | None:
    """The one wheel of this version that an installer would choose; None if none fits."""
    fitting = []
    for file in files:
        parsed = _parse_wheel(file.name)
        if parsed is None or parsed[0] != canonicalize_name(project) or parsed[1] != Version(version):
            continue
        ranks = [tags[tag] for tag in parsed[3] if tag in tags]
        if ranks:
            build = parsed[2]
            fitting.append((min(ranks), -build[0] if build else 0, file.name, file))
    return min(fitting)[3] if fitting else None


def sdist(files: Iterable[File], project: str, version: str) -> File | None:
    """The source archive (.tar.gz) of this version, None if there is none."""
    for file in files:
        if not file.name.endswith(".tar.gz"):
            continue
        try:
            name, found = parse_sdist_filename(file.name)
        except (InvalidSdistFilename, InvalidVersion):
            continue
        if name == canonicalize_name(project) and found == Version(version):
            return file
    return None


def versions(files: Iterable[File]) -> tuple[str, ...]:
    """The versions that have a file, oldest first."""
    found = set()
    for file in files:
        wheel = _parse_wheel(file.name)
        if wheel is not None:
            found.add(wheel[1])
            continue
        try:
            found.add(parse_sdist_filename(file.name)[1])
        except (InvalidSdistFilename, InvalidVersion):
            continue
    return tuple(str(version) for version in sorted(found))


def _parse_wheel(name: str) -> tuple[str, Version, tuple[int, str] | tuple[()], frozenset[Tag]] | None:
    try:
        return parse_wheel_filename(name)
    except (InvalidWheelFilename, InvalidVersion):
        return None


class PypiSource:
    """Wheels and source archives, found by name on the machine's index."""

    kind: Kind = "pypi"

    def __init__(self, index: Index | None = None) -> None:
        self.index = index or Index()

    def fetch(self, entry: Entry, part: Part) -> None:
        """Find the file on its project's page and receive it."""
        for file in self.index.files(entry.name):
            if file.name == entry.file_name:
                if file.sha256 not in (None, entry.sha256):
                    raise IntegrityError(
                        f"{entry} changed upstream: the index now lists sha256 {file.sha256}, the lock says {entry.sha256}.",
                        means="The file was replaced under the same name, which a package index should never do.",
                        next_step="find out why before locking again; nothing of it was stored",
                    )
                return self.index.receive(file, part)
        raise Gone(entry.file_name)

    def explain(self, entry: Entry) -> str:
        """What the index has of this project now."""
        files = self.index.files(entry.name)
        if not files:
            return f"{self.index.shown} has no project {entry.name} any more."
        same = [f.name for f in files if re.search(rf"-{re.escape(entry.version)}[-.]", f.name)]
        if same:
            return f"Of version {entry.version} it now has only {', '.join(same[:4])}."
        newest = [v for v in versions(files) if not Version(v).is_prerelease] or list(versions(files))
        return f"The newest version there now is {newest[-1] if newest else 'unknown'}."
