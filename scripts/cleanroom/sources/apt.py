"""Debian archives: what the machine's apt is configured to use, and a private apt that solves for another release.

The private apt has lists, state and cache of its own and sees none of the machine's sources, preferences or installed
packages; of the machine's configuration it takes the archive's address, proxies, certificates and logins. It checks the
archive's signature with the distribution's keyring.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cleanroom.errors import ResolveError

ARCHITECTURES = {"linux/amd64": "amd64", "linux/arm64": "arm64"}
KEYRINGS = ("/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-keyring.pgp")

_ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"}
_TAKEN = re.compile(r"Acquire::(?:(?:https?|ftp)(?:::|\b)|Check-(?:Valid-Until|Date)\b|Force|Retries\b|M(?:in|ax)-ValidTime)")
"""The machine's settings that the private apt takes over: how archives are reached, and how old they may be."""
_INSTALLS = re.compile(r"^Inst (\S+) (?:\[[^]]*\] )?\((\S+) ", re.MULTILINE)
_SIGNATURE = re.compile(r"signature|signed|NO_PUBKEY|GPG error|OpenPGP|sqv|Missing key", re.IGNORECASE)


@dataclass(frozen=True)
class Archives:
    """Root addresses of the Debian archive and of its security archive, best first. Either may be empty."""

    main: tuple[str, ...]
    security: tuple[str, ...]


@dataclass(frozen=True)
class Configured:
    """One source of packages that apt is configured to use."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str

    def score(self, *, security: bool) -> int:
        """How sure it is that this is Debian's own archive (or its security archive); 0: it is not."""
        fits = any(_is_security(suite) for suite in self.suites) == security
        if not fits or "main" not in self.components:
            return 0
        named = ("debian-security", "security") if security else ("debian",)
        path = self.uris[0].rstrip("/").rsplit("/", 1)[-1]
        return (
            1
            + 8 * ("debian-archive" in self.signed_by)
            + 4 * (path in named)
            + 2 * any(suite.endswith(("-updates", "-security", "/updates")) for suite in self.suites)
        )


def _is_security(suite: str) -> bool:
    return suite.rstrip("/").endswith(("-security", "/updates"))


def configured_archives() -> Archives:
    """The archives that this machine's apt uses, whatever release it is configured for."""
    sources = tuple(_configured())

    def best(*, security: bool) -> tuple[str, ...]:
        ranked = sorted(sources, key=lambda s: -s.score(security=security))
        return ranked[0].uris if ranked and ranked[0].score(security=security) > 1 else ()

    return Archives(best(security=False), best(security=True))


def proxies() -> dict[str, str]:
    """The proxies that apt is configured to use, by scheme. Those of the environment are not repeated here."""
    shown = apt_config("HTTP", "Acquire::http::Proxy", "HTTPS", "Acquire::https::Proxy")
    return {name.lower(): value for name, value in shown.items() if value and value != "DIRECT"}


def ca_info() -> str:
    """The CA file that apt is configured to trust; empty if none."""
    return apt_config("CA", "Acquire::https::CAInfo").get("CA", "")


def apt_config(*pairs: str) -> dict[str, str]:
    """`apt-config shell`: values of apt's configuration by the names given. Empty if apt is not here."""
    try:
        done = subprocess.run(["apt-config", "shell", *pairs], capture_output=True, text=True, check=False)
    except OSError:
        return {}
    split = (line.partition("=") for line in done.stdout.splitlines())
    return {name: "".join(shlex.split(value)) for name, _, value in split}


def _configured() -> Iterator[Configured]:
    places = apt_config("LIST", "Dir::Etc::sourcelist/f", "PARTS", "Dir::Etc::sourceparts/d")
    parts = Path(places.get("PARTS", "/etc/apt/sources.list.d"))
    files = [Path(places.get("LIST", "/etc/apt/sources.list"))]
    if parts.is_dir():
        files += sorted(p for p in parts.iterdir() if p.suffix in (".list", ".sources"))
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        yield from read_sources(text) if file.suffix == ".sources" else read_source_lines(text)


def read_source_lines(text: str) -> Iterator[Configured]:
    """The sources of a one-line-style file."""
    for line in text.splitlines():
        found = re.match(r"deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)((?:\s+[^\s#]+)*)", line.strip())
        if found:
            options = dict(o.split("=", 1) for o in (found[1] or "").split() if "=" in o)
            yield Configured((found[2],), (found[3],), tuple(found[4].split()), options.get("signed-by", ""))


def read_sources(text: str) -> Iterator[Configured]:
    """The sources of a deb822-style file."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", lines):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line[:1].isspace():
                fields[name] = f"{fields.get(name, '')} {line.strip()}"
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        enabled = fields.get("enabled", "yes").lower() not in ("no", "false", "0", "off")
        if enabled and "deb" in fields.get("types", "").split() and fields.get("uris", "").split():
            yield Configured(
                tuple(fields["uris"].split()),
                tuple(fields.get("suites", "").split()),
                tuple(fields.get("components", "").split()),
                fields.get("signed-by", ""),
            )


@dataclass(frozen=True)
class Package:
    """One package of a verified index. `file` is its pool path, `stanza` the text of the index about it."""

    name: str
    version: str
    file: str
    size: int
    sha256: str
    stanza: str


@dataclass(frozen=True)
class PrivateApt:
    """apt over the suites of one release, with a root folder of its own. Made by `open_private_apt`."""

    root: Path

    def install(self, names: Iterable[str], *, on_top_of: Iterable[Package] = ()) -> tuple[Package, ...]:
        """What apt would install for these names onto a system that has exactly the packages `on_top_of`.

        Only Depends and Pre-Depends are followed. Raises ResolveError if a name is unknown or there is no solution.
        """
        status = "\n\n".join(f"Status: install ok installed\n{package.stanza}" for package in on_top_of)
        (self.root / "status").write_text(status + "\n" if status else "", encoding="utf-8")
        wanted = sorted(set(names))
        if not wanted:
            return ()
        done = self._apt("install", "--simulate", *wanted)
        if done.returncode:
            raise ResolveError(
                f"apt finds no way to install {', '.join(wanted)}.",
                means=_complaints(done.stdout + done.stderr),
                next_step="correct the package names of the base or of the components under envs/",
            )
        chosen = _INSTALLS.findall(done.stdout)
        return tuple(sorted((self._package(name, version) for name, version in chosen), key=lambda p: p.name))

    def needed(self) -> tuple[str, ...]:
        """Names of all packages that are essential or of priority `required`, and apt itself."""
        marks = ("\nEssential: yes\n", "\nPriority: required\n")
        found = {name for name, stanzas in self._stanzas.items() if any(m in f"{s}\n" for s in stanzas for m in marks)}
        return tuple(sorted(found | {"apt"}))

    def _package(self, name: str, version: str) -> Package:
        found = [p for p in map(read_stanza, self._stanzas.get(name, ())) if p is not None and p.version == version]
        if not found:
            raise ResolveError(f"apt chose {name} {version}, which no verified index lists with a sha256.")
        if len({p.sha256 for p in found}) > 1:
            raise ResolveError(
                f"{name} {version} is in two archives with different bytes.",
                means="\n".join(f"{p.file} has sha256 {p.sha256}" for p in found),
            )
        # The same file may be in the main and in the security archive: always name the same one of the two.
        return min(found, key=lambda p: (p.file.startswith("pool/updates/"), p.file))

    @cached_property
    def _stanzas(self) -> Mapping[str, Sequence[str]]:
        """The text of all indexes by package name; parsed where it is asked for, as there are seventy thousand."""
        stanzas: dict[str, list[str]] = {}
        for path in sorted((self.root / "state/lists").glob("*_Packages")):
            for stanza in path.read_text(encoding="utf-8").split("\n\n"):
                stanzas.setdefault(stanza.partition("\n")[0].removeprefix("Package: "), []).append(stanza)
        return stanzas

    def _apt(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**_ENVIRONMENT, "APT_CONFIG": str(self.root / "apt.conf")}
        environment |= {k: v for k, v in os.environ.items() if k.lower() in ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy")}
        return subprocess.run(
            ["apt-get", "--quiet", "--quiet", "--no-install-recommends", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )

    def update(self, archives: Archives, suites: Sequence[str], keyring: str) -> None:
        """Fetch the indexes and check their signatures. Raises ResolveError."""
        done = self._apt("update", "--error-on=any")
        said = done.stdout + done.stderr
        if done.returncode == 0:
            return
        wrong = [line for line in said.splitlines() if line.startswith(("E:", "W:", "Err:"))]
        if any(_SIGNATURE.search(line) for line in wrong):
            raise ResolveError(
                f"The signature of the Debian archive ({', '.join(suites)}) is not valid.",
                means=f"It was checked with {keyring}.\n{_complaints(said)}",
                next_step="check the mirror and apt-get install --only-upgrade debian-archive-keyring; nothing was locked",
            )
        raise ResolveError(
            f"The Debian archive ({', '.join(suites)}) cannot be read.",
            means=_complaints(said),
            next_step=f"check network, proxy and mirror ({', '.join(archives.main[:1] + archives.security[:1])})",
        )


def open_private_apt(
    folder: Path, platform: str, suites: Sequence[str], *, archives: Archives | None = None, keyring: str = ""
) -> PrivateApt:
    """Set up apt in an empty folder for these suites, component main, and read their verified indexes.

    Suites whose name ends in -security come from the security archive. Raises ResolveError if apt is missing or not
    configured for a Debian archive, if the archive does not answer, or if a signature is wrong.
    """
    archives = archives or configured_archives()
    if not archives.main:
        raise ResolveError(
            "apt on this machine is not configured for a Debian archive.",
            means="Packages are resolved from the mirror that /etc/apt/sources.list and sources.list.d name.",
            next_step="configure apt for Debian, or lock on a Debian machine",
        )
    keyring = keyring or _keyring()
    sources = []
    for suite in suites:
        from_ = archives.security if _is_security(suite) else archives.main
        if not from_:
            raise ResolveError(
                f"apt on this machine is not configured for Debian's security archive, which {suite} is in.",
                next_step="add Debian's security archive to apt's sources",
            )
        sources.append(f"deb [signed-by={keyring}] {from_[0]} {suite} main")
    for name in ("state/lists/partial", "cache/archives/partial", "etc/sources.d", "etc/preferences.d", "etc/conf.d", "log"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "etc/sources.list").write_text("\n".join(sources) + "\n", encoding="utf-8")
    (folder / "status").write_text("", encoding="utf-8")
    (folder / "apt.conf").write_text(_configuration(folder, ARCHITECTURES[platform]), encoding="utf-8")
    apt = PrivateApt(folder)
    try:
        apt.update(archives, suites, keyring)
    except OSError as error:
        raise ResolveError(
            f"apt-get cannot be run: {error.strerror}.",
            means="Debian packages are resolved by apt.",
            next_step="run this on a Debian machine, or in a Debian container",
        ) from None
    return apt


def _configuration(folder: Path, architecture: str) -> str:
    etc = apt_config("NETRC", "Dir::Etc::netrc/f", "NETRCPARTS", "Dir::Etc::netrcparts/d")
    try:
        dumped = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False).stdout
    except OSError:
        dumped = ""
    taken = [line for line in dumped.splitlines() if _TAKEN.match(line)]
    settings = {
        "Dir": f"{folder}/",
        "Dir::State": "state/",
        "Dir::State::status": f"{folder}/status",
        "Dir::Cache": "cache/",
        "Dir::Log": "log/",
        "Dir::Etc": "etc/",
        "Dir::Etc::sourcelist": "sources.list",
        "Dir::Etc::sourceparts": "sources.d",
        "Dir::Etc::parts": "conf.d",
        "Dir::Etc::preferences": "preferences",
        "Dir::Etc::preferencesparts": "preferences.d",
        "Dir::Etc::netrc": etc.get("NETRC", "/etc/apt/auth.conf"),
        "Dir::Etc::netrcparts": etc.get("NETRCPARTS", "/etc/apt/auth.conf.d"),
        "Dir::Bin::methods": "/usr/lib/apt/methods",
        "APT::Architecture": architecture,
        "APT::Install-Recommends": "false",
        "APT::Install-Suggests": "false",
        "APT::Solver": "internal",  # Debian 13's apt has another one; both machines must choose alike
        "APT::Sandbox::User": "root",  # apt's own user may not enter a store below root's home
        "Acquire::AllowInsecureRepositories": "false",
        "Acquire::AllowWeakRepositories": "false",
        "Acquire::AllowDowngradeToInsecureRepositories": "false",
        "Acquire::Languages": "none",
        "Acquire::GzipIndexes": "false",
        "Debug::NoLocking": "true",
    }
    lines = [f'{name} "{value}";' for name, value in settings.items()]
    return "\n".join([*taken, f'APT::Architectures {{ "{architecture}"; }};', *lines]) + "\n"


def _keyring() -> str:
    for keyring in KEYRINGS:
        if os.path.exists(keyring):
            return keyring
    raise ResolveError(
        "The keyring of the Debian archive is missing.",
        means="Without it the archive's signature cannot be checked.",
        next_step="apt-get install debian-archive-keyring",
    )


def read_stanza(stanza: str) -> Package | None:
    """One package of a Packages file; None if the stanza lacks what a lock needs."""
    fields = dict(_FIELD.findall(stanza))
    if not {"Package", "Version", "Filename", "Size", "SHA256"} <= fields.keys():
        return None
    size = int(fields["Size"])
    return Package(fields["Package"], fields["Version"], fields["Filename"], size, fields["SHA256"], stanza.strip("\n"))


_FIELD = re.compile(r"^(Package|Version|Filename|Size|SHA256): (.*)$", re.MULTILINE)


def _complaints(said: str) -> str:
    """What apt said that matters, the last dozen lines."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith(("Inst ", "Conf ", "NOTE:"))]
    marked = [line for line in lines if line.startswith(("E:", "W:", "Err:"))]
    return "\n".join((lines if len(lines) <= 12 else marked or lines)[-12:])
