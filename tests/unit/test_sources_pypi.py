"""Python packages: what is taken from pip's configuration, and which of many files is chosen."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from fileserver import serving

from cleanroom.errors import FetchError
from cleanroom.sources import Part
from cleanroom.sources.pypi import File, Index, PipSettings, best_wheel, pip_settings, sdist, supported_tags, versions

AMD64 = "linux/amd64"


def files(*names: str) -> list[File]:
    return [File(name, f"/{name}", 1, "0" * 64, "") for name in names]


def chosen(python: str, glibc: str, *names: str) -> str | None:
    found = best_wheel(files(*names), "Some.Thing", "1.0", supported_tags(python, glibc, AMD64))
    return found.name if found else None


PLATFORM = "some_thing-1.0-{0}-manylinux_2_{1}_x86_64.whl"


def test_the_wheel_of_this_python_beats_the_stable_abi_and_that_beats_pure_python() -> None:
    pure, stable = "some_thing-1.0-py3-none-any.whl", PLATFORM.format("cp38-abi3", 28)
    own = PLATFORM.format("cp313-cp313", 28)
    assert chosen("3.13", "2.41", pure, stable, own) == own
    assert chosen("3.12", "2.41", pure, stable, own) == stable
    assert chosen("3.13", "2.41", pure) == pure


def test_a_wheel_for_a_newer_glibc_another_machine_or_free_threading_is_not_chosen() -> None:
    assert chosen("3.13", "2.28", PLATFORM.format("cp313-cp313", 31)) is None
    assert chosen("3.13", "2.41", "some_thing-1.0-cp313-cp313-manylinux_2_28_aarch64.whl") is None
    assert chosen("3.13", "2.41", "some_thing-1.0-cp313-cp313-musllinux_1_2_x86_64.whl") is None
    assert chosen("3.13", "2.41", PLATFORM.format("cp313-cp313t", 28)) is None
    assert chosen("3.13", "2.41", PLATFORM.format("cp314-cp314", 28)) is None


def test_the_newest_glibc_that_fits_and_old_names_are_known() -> None:
    newer, older = PLATFORM.format("cp313-cp313", 34), PLATFORM.format("cp313-cp313", 17)
    assert chosen("3.13", "2.41", older, newer) == newer
    assert chosen("3.13", "2.31", older, newer) == older
    assert chosen("3.13", "2.41", "some_thing-1.0-py3-none-manylinux2014_x86_64.whl") is not None
    assert chosen("3.13", "2.41", "some_thing-1.0-py3-none-manylinux1_x86_64.manylinux_2_5_x86_64.whl") is not None


def test_a_higher_build_number_wins_and_other_versions_never_do() -> None:
    first, second = "some_thing-1.0-1-py3-none-any.whl", "some_thing-1.0-2-py3-none-any.whl"
    assert chosen("3.13", "2.41", first, second) == second
    assert chosen("3.13", "2.41", "some_thing-1.0.1-py3-none-any.whl", "other-1.0-py3-none-any.whl") is None


def test_source_archives_are_found_by_exact_version() -> None:
    there = files("some_thing-1.0.tar.gz", "some-thing-1.0.zip", "Some.Thing-1.0.post1.tar.gz", "garbage.tar.gz", "x.exe")
    found = sdist(there, "some-thing", "1.0")
    assert found is not None
    assert found.name == "some_thing-1.0.tar.gz"
    assert sdist(there, "some-thing", "2") is None
    assert versions(there) == ("1.0", "1.0.post1")


def test_only_index_certificate_and_proxy_are_taken_from_pip(tmp_path: Path) -> None:
    everyone, mine = tmp_path / "xdg/pip/pip.conf", tmp_path / "home/.config/pip/pip.conf"
    for path in (everyone, mine):
        path.parent.mkdir(parents=True)
    everyone.write_text("[global]\nindex-url = http://everyone/simple\nextra-index-url = http://no/\n")
    lines = ["[global]", "index_url = http://mine/simple", "proxy = http://proxy:1", "cert = /mine.pem"]
    mine.write_text("\n".join([*lines, "find-links = /wheels", "constraint = c"]))
    environment = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_DIRS": str(tmp_path / "xdg"), "PIP_FIND_LINKS": "/wheels"}
    assert pip_settings(environment) == PipSettings("http://mine/simple", "/mine.pem", "http://proxy:1")
    environment["PIP_INDEX_URL"] = "http://now/simple"
    environment["PIP_CERT"] = "/ca.pem"
    assert pip_settings(environment) == PipSettings("http://now/simple", "/ca.pem", "http://proxy:1")
    environment["PIP_CONFIG_FILE"] = os.devnull
    assert pip_settings(environment) == PipSettings("http://now/simple", "/ca.pem", "")


def test_uv_gets_the_same_index_certificate_and_proxy(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("")
    settings = PipSettings("http://mine/simple", str(bundle), "http://proxy:1").environment()
    assert settings["UV_DEFAULT_INDEX"] == "http://mine/simple"
    assert settings["SSL_CERT_FILE"] == str(bundle)
    assert settings["HTTPS_PROXY"] == "http://proxy:1"


def test_an_index_in_a_folder_is_refused() -> None:
    with pytest.raises(FetchError, match="not an http"):
        Index(PipSettings("file:///srv/simple"))


def test_a_login_is_used_for_the_index_and_never_shown(tmp_path: Path) -> None:
    with serving() as server:
        server.project("thing", {"thing-1.0.tar.gz": b"x"})
        index = Index(PipSettings(server.address.replace("://", "://me:secret@") + "/simple"))
        assert "secret" not in index.shown
        (file,) = index.files("Thing")
        assert "secret" not in file.url
        path = tmp_path / "part"
        path.touch()
        index.receive(file, Part(path, 1, lambda _: None, threading.Event()))
        assert path.read_bytes() == b"x"
        assert index.files("absent") == ()


def test_a_page_is_asked_for_once() -> None:
    with serving() as server:
        server.project("thing", {"thing-1.0.tar.gz": b"x"})
        index = Index(PipSettings(f"{server.address}/simple/"))
        assert index.files("thing") is index.files("Thing")
        assert server.count("/simple/thing/") == 1
