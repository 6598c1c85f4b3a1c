"""What people and programs read: a real pseudo-terminal, plain streams and JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cleanroom import console as module
from cleanroom.console import Console, human_bytes, human_seconds, without_control
from cleanroom.errors import ArchError

SCRIPTS = Path(module.__file__).parents[1]
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


@pytest.fixture
def plain() -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(stream=stream), stream


@pytest.fixture
def events() -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(json=True, stream=io.StringIO(), events=stream), stream


def read(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def on_a_terminal(program: str) -> tuple[int, str]:
    """Exit status and everything a real terminal was sent while a program ran with it as standard error."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS), "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen([sys.executable, "-c", program], stderr=theirs, stdout=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    chunks = []
    with contextlib.suppress(OSError):  # Linux says EIO when the other side is closed
        while chunk := os.read(ours, 65536):
            chunks.append(chunk)
    os.close(ours)
    return process.wait(), b"".join(chunks).decode()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (45_600_000, "45.6 MB"),
        (5_700_000_000, "5.70 GB"),
        (10**16, "10000 TB"),
    ],
)
def test_bytes_have_three_figures(count: int, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (-1, "0.0 s"),
        (0.44, "0.4 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (238, "3 min 58 s"),
        (3599.6, "1 h 00 min"),
        (3840, "1 h 04 min"),
        (90_000, "25 h 00 min"),
    ],
)
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("\x1b[01;31m\x1b[Kfatal error: \x1b[m\x1b[Kx", "fatal error: x"),
        ("10%\r50%\r100%\n", "100%\n"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("\x1b]0;title\x07text", "text"),
        ("bell\x07 and null\x00", "bell and null"),
        ("tab\tstays", "tab\tstays"),
    ],
)
def test_control_sequences_are_taken_out(raw: str, clean: str) -> None:
    assert without_control(raw) == clean


def test_markup_in_messages_is_text(plain: tuple[Console, io.StringIO]) -> None:
    console, stream = plain
    console.info("[bold]not bold[/bold] :smile: [/]")
    assert stream.getvalue() == "[bold]not bold[/bold] :smile: [/]\n"


def test_long_lines_are_not_broken_in_a_pipe(plain: tuple[Console, io.StringIO]) -> None:
    console, stream = plain
    console.info("word " * 100)
    assert stream.getvalue().count("\n") == 1


def test_an_error_says_what_it_means_and_what_to_type(plain: tuple[Console, io.StringIO]) -> None:
    console, stream = plain
    console.error(ArchError("sm_70 is gone", means="CUDA 13 dropped it.", next_step="use sm_75"))
    assert stream.getvalue() == "error: sm_70 is gone\nCUDA 13 dropped it.\nNext: use sm_75\n"


def test_an_error_as_json_carries_its_exit_code(events: tuple[Console, io.StringIO]) -> None:
    console, stream = events
    console.error(ArchError("sm_70 is gone", next_step="use sm_75"))
    assert read(stream) == [
        {"event": "error", "kind": "ArchError", "exit_code": 13, "what": "sm_70 is gone", "means": "", "next_step": "use sm_75"}
    ]


def test_a_result_is_aligned_for_people(plain: tuple[Console, io.StringIO]) -> None:
    console, stream = plain
    console.result({"lock": "sm100-debian13", "files": 3, "warnings": ["a", "b"]})
    assert stream.getvalue() == "lock:     sm100-debian13\nfiles:    3\nwarnings: a, b\n"


def test_json_writes_nothing_for_people_and_one_object_a_line() -> None:
    people, stream = io.StringIO(), io.StringIO()
    console = Console(json=True, stream=people, events=stream)
    console.info("line\nbreak")
    console.warn("w")
    console.result({"path": Path("x")})
    with console.progress("Fetching", 10) as work, console.steps("Building", 1) as view:
        work.advance(10)
        view.start("a")
        view.log("a", "\x1b[31mred\x1b[0m\n")
        view.finish("a", "built", 1.0)
    assert people.getvalue() == ""
    assert [e["event"] for e in read(stream)] == [
        "info", "warning", "result", "progress", "step_started", "step_log", "step_finished", "progress"
    ]  # fmt: skip
    assert read(stream)[0]["text"] == "line\nbreak"
    assert read(stream)[5]["text"] == "red"
    assert read(stream)[6] | {"event": ""} == {
        "event": "", "title": "Building", "step": "a", "status": "built", "seconds": 1.0
    }  # fmt: skip
    assert read(stream)[7]["done"] == 10


def test_plain_progress_says_total_first_and_result_last(plain: tuple[Console, io.StringIO]) -> None:
    console, stream = plain
    with console.progress("Fetching", 2_000_000) as work:
        work.advance(2_000_000)
    first, last = stream.getvalue().splitlines()
    assert first == "Fetching: 2.00 MB"
    assert last.startswith("Fetching: 2.00 MB in 0.")


def test_plain_progress_is_a_line_every_few_seconds_not_one_a_call(
    plain: tuple[Console, io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    console, stream = plain
    monkeypatch.setattr(module, "PLAIN_INTERVAL", 0.05)
    with console.progress("Checking", 1000, "files") as work:
        began = time.monotonic()
        while time.monotonic() - began < 0.32:
            work.advance()
            time.sleep(0.001)
    between = stream.getvalue().splitlines()[1:-1]
    assert 2 <= len(between) <= 6
    assert re.fullmatch(r"Checking: \d+ of 1000 files \(\d+ %\).*", between[0])


def test_an_unknown_total_is_no_percentage(plain: tuple[Console, io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    console, stream = plain
    monkeypatch.setattr(module, "PLAIN_INTERVAL", 0.0)
    with console.progress("Reading", None) as work:
        work.advance(5)
    assert "%" not in stream.getvalue()
    assert "None" not in stream.getvalue()


def test_advancing_from_many_threads_counts_everything(plain: tuple[Console, io.StringIO]) -> None:
    console, _ = plain
    with console.progress("Fetching", 8000) as work:
        threads = [threading.Thread(target=lambda: [work.advance() for _ in range(1000)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert work.done == 8000


def test_events_of_many_threads_never_mix(events: tuple[Console, io.StringIO]) -> None:
    console, stream = events
    threads = [threading.Thread(target=lambda: [console.info("x" * 2000) for _ in range(50)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read(stream)) == 400


def test_plain_steps_count_and_name_their_status(plain: tuple[Console, io.StringIO]) -> None:
    console, stream = plain
    with console.steps("Building", 3) as view:
        view.start("deepep")
        view.log("deepep", "[1/3] g++ x.cpp\n[2/3] g++ y.cpp\n\n")
        view.log("deepep", "a line too soon after the last")
        view.finish("deepep", "built", 164.3)
        view.finish("flashmla", "cached", 0.0)
    assert stream.getvalue().splitlines() == [
        "Building: deepep started",
        "deepep | [2/3] g++ y.cpp",
        "[1 of 3] deepep built, 2 min 44 s",
        "[2 of 3] flashmla cached",
    ]


def test_silence_is_broken_by_a_line_that_names_what_runs(
    plain: tuple[Console, io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    console, stream = plain
    monkeypatch.setattr(module, "HEARTBEAT", 0.1)
    with console.steps("Building", 2) as view:
        view.start("flashmla")
        time.sleep(0.35)
    assert re.search(r"Building: 0 of 2 done, running: flashmla \(0\.\d s\)", stream.getvalue())


def test_no_thread_is_left_behind_after_an_exception(plain: tuple[Console, io.StringIO]) -> None:
    console, _ = plain
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), console.steps("Building", 1):
        _ = 1 / 0
    assert threading.active_count() == before


def test_a_failed_piece_of_work_claims_no_success(plain: tuple[Console, io.StringIO]) -> None:
    console, stream = plain
    with pytest.raises(OSError, match="gone"), console.progress("Fetching", 10):
        raise OSError("gone")
    assert " in " not in stream.getvalue()


TERMINAL = """
import time
from cleanroom.console import Console
console = Console()
assert console.live
with console.progress("Fetching", 1000000) as work, console.steps("Building", 2) as view:
    view.start("flashmla")
    for i in range(8):
        work.advance(125000)
        view.log("flashmla", f"[{i}/8] \\x1b[31mnvcc\\x1b[0m unit.cu")
        time.sleep(0.1)
    console.info("in between")
    view.finish("flashmla", "built", 12)
"""


def test_a_terminal_sees_bar_size_speed_and_running_steps() -> None:
    status, text = on_a_terminal(TERMINAL)
    assert status == 0
    assert "of 1.00 MB" in text
    assert "MB/s" in text or "kB/s" in text
    assert "Building  0 of 2" in text
    assert "nvcc unit.cu" in text
    assert "in between" in text
    assert "[1 of 2] flashmla built, 12 s" in text


def test_a_terminal_gets_its_cursor_back() -> None:
    _, text = on_a_terminal(TERMINAL)
    assert text.count(HIDE) == 1
    assert text.count(SHOW) == 1
    assert text.rindex(SHOW) > text.rindex(HIDE)


@pytest.mark.parametrize("end", ["raise KeyboardInterrupt", "raise SystemExit(3)", "1 / 0", "os.kill(os.getpid(), signal.SIGINT)"])
def test_a_terminal_is_clean_after_any_end(end: str) -> None:
    program = f"""
import os, signal, time
from cleanroom.console import Console
console = Console()
with console.progress("Fetching", 10), console.steps("Building", 1) as view:
    view.start("a")
    time.sleep(0.3)
    {end}
    time.sleep(1)
"""
    status, text = on_a_terminal(program)
    assert status != 0
    assert text.count(HIDE) == text.count(SHOW) == 1
    assert text.rindex(SHOW) > text.rindex(HIDE)


def test_bars_of_two_threads_share_one_display() -> None:
    program = """
import threading, time
from cleanroom.console import Console
console = Console()
def work(name, seconds):
    with console.progress(name, 10, "files") as bar:
        time.sleep(seconds)
        bar.advance(10)
threads = [threading.Thread(target=work, args=(f"job {i}", 0.2 + 0.2 * i)) for i in range(3)]
[t.start() for t in threads]
[t.join() for t in threads]
"""
    status, text = on_a_terminal(program)
    assert status == 0, text
    assert text.count(HIDE) == text.count(SHOW)
    for i in range(3):
        assert f"job {i}: 10 files in" in text


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    program = TERMINAL.replace("assert console.live", "assert not console.live").replace(
        "from cleanroom", "import os; os.environ['TERM'] = 'dumb'\nfrom cleanroom"
    )
    status, text = on_a_terminal(program)
    assert status == 0, text
    assert HIDE not in text
    assert "\x1b[2K" not in text


def test_a_reader_that_leaves_does_not_stop_the_work() -> None:
    program = "from cleanroom.console import Console\nc = Console(json=True)\nfor i in range(5000): c.info('x' * 100)"
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    done = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert done.stdout is not None
    assert done.stderr is not None
    done.stdout.readline()
    done.stdout.close()
    assert done.wait() == 0
    assert done.stderr.read() == b""
    done.stderr.close()


def test_a_stream_without_unicode_still_gets_the_text() -> None:
    program = "from cleanroom.console import Console\nfrom rich.text import Text\nc = Console()\nc.info('caf\\u00e9 \\u2192')"
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS), "PYTHONIOENCODING": "ascii:backslashreplace"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b"caf\\xe9 \\u2192\n"
