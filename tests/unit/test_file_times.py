"""One fixed time for every file, folder and link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from file_times import settle

EPOCH = 1_796_000_000


def test_every_file_folder_and_link_gets_the_epoch_and_what_a_link_points_to_keeps_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
    outside = tmp_path / "outside"
    outside.write_text("")
    os.utime(outside, (1, 1))
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").write_text("text")
    (root / "a" / "link").symlink_to(outside)
    (root / "dangling").symlink_to("nowhere")
    (root / "to-folder").symlink_to("a")
    settle(root)
    assert {os.lstat(path).st_mtime_ns for path in [root, *root.rglob("*")]} == {EPOCH * 10**9}
    assert outside.stat().st_mtime == 1
    assert (root / "a" / "b" / "file").read_text() == "text"


def test_a_time_of_its_own_is_never_invented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    with pytest.raises(KeyError):
        settle(tmp_path)
