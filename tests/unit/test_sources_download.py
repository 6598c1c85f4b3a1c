"""Transfers through an intercepting proxy's certificate: trusted where the machine trusts it, refused where not."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from fileserver import Handler, Served

from cleanroom.sources import Gone, Part, Unreachable, download
from cleanroom.sources.download import Session, ca_bundle, host_of

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")

VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for the loopback address that no machine trusts, and its key, in one file."""
    path = tmp_path_factory.mktemp("certificate") / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", path, "-out", path, "-days", "2"]
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, *subject], check=True, capture_output=True)
    return path


@pytest.fixture
def server(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """An https server that shows that certificate."""
    monkeypatch.setattr(download, "PAUSES", ())
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)

    class Bound(Handler):
        pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    listening = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
    listening.daemon_threads = True
    listening.handle_error = lambda *_: None  # type: ignore[method-assign]  # a refused handshake is what is tested
    listening.socket = context.wrap_socket(listening.socket, server_side=True)
    Bound.served = Served(f"https://127.0.0.1:{listening.server_address[1]}", {"/file": b"content"})
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield Bound.served
    listening.shutdown()
    thread.join()
    listening.server_close()


def get(server: Served, bundle: str, folder: Path, path: str = "/file") -> bytes:
    place = folder / "part"
    place.touch()
    with Session(bundle, {}) as session:
        download.download(session, server.address + path, Part(place, 7, lambda _: None, threading.Event()))
    return place.read_bytes()


def test_a_certificate_that_the_machine_does_not_trust_is_refused_and_named(server: Served, tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="certificate is not trusted") as raised:
        get(server, ca_bundle(), tmp_path)
    assert host_of(server.address) in str(raised.value)


@pytest.mark.parametrize("name", VARIABLES)
def test_the_bundle_of_the_environment_is_trusted(
    server: Served, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, str(certificate))
    assert get(server, ca_bundle(), tmp_path) == b"content"


def test_the_configured_bundle_beats_the_environment(
    server: Served, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.pem"
    other.write_bytes(Path(ca_bundle()).read_bytes() if ca_bundle() else b"")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(other))
    assert get(server, ca_bundle(str(certificate)), tmp_path) == b"content"


def test_what_is_not_there_is_told_apart_from_what_does_not_answer(server: Served, certificate: Path, tmp_path: Path) -> None:
    with pytest.raises(Gone):
        get(server, str(certificate), tmp_path, "/absent")
    assert get(server, str(certificate), tmp_path) == b"content"
