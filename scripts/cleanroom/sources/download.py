"""Receiving files over HTTP: resumed where the server can, retried where it helps, by way of the machine's proxy and CA."""

from __future__ import annotations

import os
import re
import ssl
import threading
from collections.abc import Mapping
from typing import Any

import requests
import urllib3

from cleanroom.sources import BLOCK, Gone, Part, Unreachable

TIMEOUT = (10.0, 20.0)
"""Seconds to connect, and between two blocks."""
PAUSES = (0.5, 2.0, 5.0)
"""Seconds before each further attempt after a failed connection, a broken transfer or a busy server."""
BUSY = (408, 425, 429, 500, 502, 503, 504)

_SYSTEM_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
_RANGE = re.compile(r"bytes (\d+)-")


class Session(requests.Session):
    """A requests session with a fixed CA bundle: requests itself would let an environment variable beat pip's setting."""

    def __init__(self, bundle: str, proxies: Mapping[str, str]) -> None:
        super().__init__()
        self.bundle = bundle
        self.chosen_proxies = dict(proxies)

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        """The environment's proxies, then the configured ones; always the chosen CA bundle."""
        settings: Any = super().merge_environment_settings(url, proxies, stream, verify, cert)
        settings["verify"] = self.bundle or True
        settings["proxies"] = {**settings["proxies"], **self.chosen_proxies}
        return settings


class Sessions:
    """One session for each thread, as requests' sessions must not be shared."""

    def __init__(self, bundle: str, proxies: Mapping[str, str]) -> None:
        self._bundle, self._proxies = bundle, proxies
        self._local = threading.local()

    def get(self) -> Session:
        """The session of the calling thread."""
        session: Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = Session(self._bundle, self._proxies)
        return session


def ca_bundle(configured: str = "") -> str:
    """The CA file to trust: the configured one, the environment's, the machine's; empty leaves it to requests."""
    candidates = [configured]
    candidates += [os.environ.get(name, "") for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")]
    candidates += [_SYSTEM_BUNDLE, ssl.get_default_verify_paths().cafile or ""]
    return next((c for c in candidates if c and os.path.exists(c)), "")


def download(session: requests.Session, url: str, part: Part, *, auth: tuple[str, str] | None = None) -> None:
    """Receive `url` into `part`, from where it is. Raises Gone (404, 410), Unreachable or Stopped."""
    for pause in (*PAUSES, None):
        if part.complete:
            return
        try:
            _attempt(session, url, part, auth)
        except _Busy as busy:
            reason = str(busy)
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            reason = in_short(error)
        else:
            return
        if pause is None:
            raise Unreachable(f"{host_of(url)}: {reason}")
        part.pause(pause)


class _Busy(Exception):
    """The server cannot answer now."""


def _attempt(session: requests.Session, url: str, part: Part, auth: tuple[str, str] | None) -> None:
    headers = {"Accept-Encoding": "identity"}  # a .tar.gz must arrive as it is, not unpacked on the way
    if part.offset:
        headers["Range"] = f"bytes={part.offset}-"
    with session.get(url, headers=headers, stream=True, timeout=TIMEOUT, auth=auth) as response:
        status = response.status_code
        if status in (404, 410):
            raise Gone(url)
        if status in BUSY:
            raise _Busy(f"the server answers {status}")
        if status == 416:
            part.restart()
            raise _Busy("the server has fewer bytes than were received already")
        if status not in (200, 206):
            raise Unreachable(f"{host_of(url)} answers {status} {response.reason} for {url.rsplit('/', 1)[-1]}")
        begins = _RANGE.match(response.headers.get("Content-Range", ""))
        if part.offset and not (status == 206 and begins and int(begins[1]) == part.offset):
            part.restart()
            if status == 206:
                raise _Busy("the server answered with another range")
        while not part.offset > part.size and (block := response.raw.read(BLOCK, decode_content=False)):
            part.write(block)


def host_of(url: str) -> str:
    """The server of a URL, without user name and password."""
    return url.split("://", 1)[-1].split("/", 1)[0].rsplit("@", 1)[-1]


def in_short(error: Exception) -> str:
    """What a connection error is about, without the chain of classes that requests prints."""
    text = str(error)
    for cause, meaning in _CAUSES:
        if cause in text:
            return meaning
    inner = getattr(error, "reason", None) or (error.args[0] if error.args else error)
    inner = getattr(inner, "reason", inner)
    return re.sub(r"^<[^>]*>:? ?", "", re.sub(r"://[^/@\s]+@", "://", str(inner))) or type(error).__name__


_CAUSES = (
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not trusted by this machine's CA bundle"),
    ("Name or service not known", "its name cannot be resolved"),
    ("Temporary failure in name resolution", "its name cannot be resolved"),
    ("No address associated with hostname", "its name cannot be resolved"),
    ("Connection refused", "connection refused"),
    ("Network is unreachable", "the network is unreachable"),
    ("No route to host", "no route to it"),
    ("timed out", "it does not answer in time"),
    ("Connection reset by peer", "it closed the connection"),
    ("IncompleteRead", "the transfer broke off"),
    ("Connection aborted", "it closed the connection"),
    ("Tunnel connection failed", "the proxy refused the connection"),
)
