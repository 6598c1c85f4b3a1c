"""The engine's decisions and its reading of BuildKit's progress; real builds are in tests/integration."""

import base64
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cleanroom import engine
from cleanroom.console import Console
from cleanroom.embedded import file_system_of, refuse_unusable_file_system
from cleanroom.engine import Builder, Docker, LocalOutput, OciOutput, ProgressReader, StepEvent, objection_to, stage_of
from cleanroom.errors import EngineError

T0, T1 = "2026-11-30T04:43:30.084742833Z", "2026-11-30T04:43:32.584795752Z"
RUN = "[deepep 3/5] RUN make"
GOOD = Docker(True, "", "0.13.1+ds1", Builder("docker", "v0.0.0+unknown"), "26.1.5+dfsg1", snapshotter=True)


def vertex(name: str, **fields: Any) -> dict[str, Any]:
    return {"vertexes": [{"digest": f"sha256:{name}", "name": name, **fields}]}


def log(name: str, text: bytes, stream: int = 1) -> dict[str, Any]:
    return {"logs": [{"vertex": f"sha256:{name}", "stream": stream, "data": base64.b64encode(text).decode()}]}


def read(*documents: dict[str, Any]) -> tuple[list[StepEvent], ProgressReader]:
    events: list[StepEvent] = []
    reader = ProgressReader(events.append)
    for document in documents:
        reader.feed(document)
    reader.close()
    return events, reader


def shown(events: list[StepEvent]) -> list[tuple[str, str]]:
    return [(event.status, event.text) for event in events]


# progress


def test_a_step_starts_logs_by_line_and_ends_with_its_seconds() -> None:
    events, reader = read(
        vertex(RUN),
        vertex(RUN, started=T0),
        log(RUN, b"one\ntw"),
        log(RUN, b"o\r\nlast"),
        vertex(RUN, started=T0, completed=T1),
    )
    assert shown(events) == [("started", ""), ("log", "one"), ("log", "two"), ("done", ""), ("log", "last")]
    assert events[-1].seconds == pytest.approx(2.500053)
    assert reader.logs() == {RUN: "one\ntwo\nlast"}
    assert {event.stage for event in events} == {"deepep"}


def test_a_line_that_buildkit_tears_around_the_end_of_its_step_stays_whole() -> None:
    ended = vertex(RUN, started=T0, completed=T1)
    events, reader = read(vertex(RUN, started=T0), log(RUN, b"longer than tw"), ended, log(RUN, b"o mebibytes\n"))
    assert reader.logs() == {RUN: "longer than two mebibytes"}
    assert shown(events)[1:] == [("done", ""), ("log", "longer than two mebibytes")]


def test_output_and_errors_do_not_tear_each_others_lines() -> None:
    events, _ = read(vertex(RUN, started=T0), log(RUN, b"out"), log(RUN, b"err\n", stream=2), log(RUN, b"put\n"))
    assert shown(events)[1:] == [("log", "err"), ("log", "output")]


def test_a_character_that_is_split_between_two_chunks_stays_whole() -> None:
    encoded = "größer\n".encode()
    events, _ = read(vertex(RUN, started=T0), log(RUN, encoded[:3]), log(RUN, encoded[3:]))
    assert shown(events)[1:] == [("log", "größer")]


def test_a_cached_step_is_told_once_and_never_as_started() -> None:
    cached = vertex(RUN, started=T0, completed=T0, cached=True)
    events, reader = read(vertex(RUN), cached, cached)
    assert shown(events) == [("cached", "")]
    assert reader.cached() == (RUN,)


def test_a_step_that_buildkit_looks_at_again_is_not_told_again() -> None:
    done = vertex("[internal] load build definition", started=T0, completed=T1)
    events, _ = read(done, vertex("[internal] load build definition", started=T1), done)
    assert [event.status for event in events] == ["started", "done"]


def test_a_failure_has_the_exit_code_and_the_whole_log() -> None:
    error = 'process "/bin/sh -c make" did not complete successfully: exit code: 137'
    ended = vertex(RUN, started=T0, completed=T1, error=error)
    events, reader = read(vertex(RUN, started=T0), log(RUN, b"g++: fatal\n"), ended)
    failure = reader.failure()
    assert failure is not None
    assert (failure.step, failure.exit_code, failure.log) == (RUN, 137, "g++: fatal")
    assert shown(events)[-1] == ("failed", error)


def test_steps_that_were_cancelled_because_of_another_are_not_the_failure() -> None:
    other = "[flashmla 2/4] RUN make"
    _, reader = read(
        vertex(other, started=T0, completed=T1, error="context canceled"),
        vertex(RUN, started=T0, completed=T1, error="process did not complete successfully: exit code: 2"),
    )
    failure = reader.failure()
    assert failure is not None
    assert failure.step == RUN


def test_the_known_steps_are_those_of_the_dockerfile() -> None:
    events, _ = read(vertex("[internal] load .dockerignore"), vertex(RUN), vertex("[deepep 4/5] RUN test", started=T0))
    assert events[-1].known == 2


def test_transfers_are_told_in_megabytes() -> None:
    load = "[context base] OCI load"
    status = {"id": "sha256:1", "vertex": f"sha256:{load}", "current": 5_240_000, "total": 492_190_000}
    events, _ = read(vertex(load), {"statuses": [status]})
    assert shown(events) == [("transfer", "sha256:1 5.2 MB of 492.2 MB")]


@pytest.mark.parametrize(
    ("step", "stage"),
    [
        (RUN, "deepep"),
        ("[linux/amd64 deepep 3/5] RUN make", "deepep"),
        ("[stage-1 2/2] COPY . .", "stage-1"),
        ("[python  1/12] RUN true", "python"),
        ("[internal] load .dockerignore", ""),
        ("[context base] OCI load from client", ""),
        ("exporting to oci image format", ""),
    ],
)
def test_the_stage_is_in_the_name_of_a_step(step: str, stage: str) -> None:
    assert stage_of(step) == stage


def test_documents_are_read_whether_on_one_line_or_many_and_the_rest_is_kept_as_text() -> None:
    text = json.dumps({"a": 1}, indent=2) + "\n" + json.dumps({"b": "}"}) + "\nDockerfile:4\n{broken\n>>> RUN\n{\n  'c': 3"
    said: list[str] = []
    assert list(engine._documents(io.BytesIO(text.encode()), said)) == [{"a": 1}, {"b": "}"}]
    assert said == ["Dockerfile:4", "{broken", ">>> RUN", "{", "  'c': 3"]


# which engine


def test_a_docker_of_the_needed_version_has_no_objection() -> None:
    assert objection_to(GOOD) == ""


@pytest.mark.parametrize(
    ("docker", "says"),
    [
        (Docker(), "no docker command"),
        (Docker(True), "no buildx plugin"),
        (replace(GOOD, buildx="0.10.4"), "found buildx 0.10.4, needed is 0.13"),
        (replace(GOOD, server="20.10.24+dfsg1"), "found Docker 20.10.24+dfsg1, needed is 26.0"),
        (replace(GOOD, server="25.0.5"), "found Docker 25.0.5, needed is 26.0"),
        (replace(GOOD, snapshotter=False), "containerd-snapshotter"),
        (replace(GOOD, server="", error="no Docker daemon answers: refused"), "refused"),
        (replace(GOOD, builder=Builder("docker-container", "v0.12.5")), "found BuildKit v0.12.5, needed is 0.13"),
        (replace(GOOD, builder=Builder("kubernetes", error="no such host")), "no such host"),
    ],
)
def test_an_unusable_docker_is_refused_with_what_was_found_and_needed(docker: Docker, says: str) -> None:
    assert says in objection_to(docker)


@pytest.mark.parametrize("driver", ["docker-container", "remote", "kubernetes"])
def test_a_builder_of_its_own_counts_by_its_buildkit_whatever_the_daemon_is(driver: str) -> None:
    assert objection_to(Docker(True, "", "0.21.0", Builder(driver, "v0.23.2"))) == ""


def test_driver_and_version_are_read_from_buildx_inspect() -> None:
    old = "Name:   default\nDriver: docker\n\nNodes:\nName: default\nStatus: running\nBuildkit: v0.13.2\nPlatforms: a\n"
    new = "Name: far\nDriver: remote\n\nNodes:\nEndpoint: tcp://10.0.0.2:1234\nBuildKit version: v0.23.2\n"
    assert engine.parse_inspect(old) == Builder("docker", "v0.13.2")
    assert engine.parse_inspect(new) == Builder("remote", "v0.23.2")
    assert engine.parse_inspect("", "refused").error == "refused"


@pytest.mark.parametrize("name", ["DOCKER_HOST", "BUILDX_BUILDER", "DOCKER_CONTEXT"])
def test_a_docker_that_was_asked_for_is_never_silently_replaced(name: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot be used") as caught:
        engine.choose({name: "elsewhere", "PATH": str(tmp_path)}, Console())
    assert f"{name}=elsewhere" in caught.value.means


def test_without_docker_the_embedded_engine_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "why_not_embedded", lambda: "")
    assert engine.choose({"PATH": str(tmp_path)}, Console()) == ("embedded", None)


def test_with_neither_both_reasons_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "why_not_embedded", lambda: "it needs root.")
    with pytest.raises(EngineError) as caught:
        engine.choose({"PATH": str(tmp_path)}, Console())
    assert "no docker command" in caught.value.means
    assert "needs root" in caught.value.means


def test_an_unknown_choice_of_engine_is_refused() -> None:
    with pytest.raises(EngineError, match="podman"):
        engine.choose({"CLEANROOM_ENGINE": "podman"}, Console())


# outputs


def test_an_image_appears_only_once_it_is_whole(tmp_path: Path) -> None:
    wanted = tmp_path / "out" / "image.tar"
    with engine._output(OciOutput(wanted, "gzip")) as (argument,):
        options = dict(part.split("=", 1) for part in argument.removeprefix("--output=").split(","))
        assert options["compression"] == "gzip"
        assert options["rewrite-timestamp"] == options["force-compression"] == "true"
        Path(options["dest"]).write_text("image")
        assert not wanted.exists()
    assert wanted.read_text() == "image"
    assert [path.name for path in wanted.parent.iterdir()] == ["image.tar"]


def test_a_folder_is_replaced_whole_and_stays_as_it_was_if_the_build_fails(tmp_path: Path) -> None:
    wanted = tmp_path / "wheels"
    wanted.mkdir()
    (wanted / "old.whl").touch()
    failing = engine._output(LocalOutput(wanted))
    (argument,) = failing.__enter__()
    (Path(argument.partition("dest=")[2]) / "half.whl").touch()
    error = EngineError("failed")
    assert not failing.__exit__(EngineError, error, None)
    assert [path.name for path in wanted.iterdir()] == ["old.whl"]
    with engine._output(LocalOutput(wanted)) as (argument,):
        (Path(argument.partition("dest=")[2]) / "new.whl").touch()
    assert [path.name for path in wanted.iterdir()] == ["new.whl"]
    assert [path.name for path in tmp_path.iterdir()] == ["wheels"]


# where the state is kept

MOUNTS = """22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /tmp rw - overlay overlay rw
31 22 254:1 / /srv/with\\040space rw - xfs /dev/vdb rw
"""


def test_the_file_system_is_that_of_the_deepest_mount(tmp_path: Path) -> None:
    assert file_system_of(Path("/usr"), MOUNTS) == "ext4"
    assert file_system_of(Path("/tmp/x"), MOUNTS) == "overlay"
    assert file_system_of(Path("/tmpfoo"), MOUNTS) == "ext4"
    assert file_system_of(Path("/srv/with space/store"), MOUNTS) == "xfs"


def test_a_store_on_overlayfs_is_refused_with_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cleanroom.embedded.file_system_of", lambda _folder: "overlay")
    with pytest.raises(EngineError, match="overlay") as caught:
        refuse_unusable_file_system(tmp_path)
    assert "CLEANROOM_STORE" in caught.value.next_step
