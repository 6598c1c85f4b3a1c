"""Image layouts: same files, same bytes; damage is found."""

import json
import os
import tarfile
import time
from pathlib import Path

import pytest

from cleanroom.errors import IntegrityError
from cleanroom.oci import check_layout, write_layout, write_rootfs_tar

EPOCH = 1_700_000_000


def make_root(root: Path, *, backwards: bool = False) -> Path:
    names = ["usr/bin/tool", "etc/name", "usr/share/" + "long/" * 30 + "file"]
    for name in reversed(names) if backwards else names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        path.chmod(0o755 if "bin" in name else 0o644)
    os.link(root / "etc/name", root / "etc/second")
    (root / "bin").symlink_to("usr/bin")
    for name in ("dev", "proc"):
        (root / name).mkdir()
        (root / name / "made-at-run-time").touch()
    os.utime(root / "etc/name", (EPOCH - 1000, EPOCH - 1000))
    return root


def make_tar(root: Path, tar: Path) -> Path:
    write_rootfs_tar(root, tar, epoch=EPOCH, touched_since=time.time() + 60)
    return tar


def layout(folder: Path, tar: Path) -> str:
    return write_layout(folder, tar, env={"PATH": "/bin", "LANG": "C.UTF-8"}, platform="linux/amd64", epoch=EPOCH)


def test_the_same_files_give_the_same_tar_whenever_and_in_whatever_order_they_were_made(tmp_path: Path) -> None:
    first = make_tar(make_root(tmp_path / "a"), tmp_path / "a.tar")
    second = make_tar(make_root(tmp_path / "b", backwards=True), tmp_path / "b.tar")
    assert first.read_bytes() == second.read_bytes()


def test_late_times_become_the_epoch_and_earlier_ones_stay(tmp_path: Path) -> None:
    with tarfile.open(make_tar(make_root(tmp_path / "a"), tmp_path / "a.tar")) as archive:
        times = {member.name: member.mtime for member in archive}
    assert times["./etc/name"] == EPOCH - 1000
    assert times["./usr/bin/tool"] == EPOCH


def test_times_from_while_the_folder_was_made_become_the_epoch_even_with_a_clock_that_is_behind(tmp_path: Path) -> None:
    root = make_root(tmp_path / "a")
    os.utime(root / "usr/bin/tool", (1000, 1000))
    write_rootfs_tar(root, tmp_path / "a.tar", epoch=EPOCH, touched_since=500)
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert archive.getmember("./usr/bin/tool").mtime == EPOCH


def test_hard_links_stay_links_and_runtime_folders_are_empty(tmp_path: Path) -> None:
    with tarfile.open(make_tar(make_root(tmp_path / "a"), tmp_path / "a.tar")) as archive:
        assert archive.getmember("./etc/second").islnk()
        assert archive.getmember("./etc/second").linkname == "./etc/name"
        assert archive.getmember("./bin").issym()
        assert "./dev" in archive.getnames()
        assert not [name for name in archive.getnames() if "made-at-run-time" in name]


def test_a_pipe_in_the_root_file_system_is_refused(tmp_path: Path) -> None:
    os.mkfifo(make_root(tmp_path / "a") / "etc/pipe")
    with pytest.raises(IntegrityError, match="/etc/pipe"):
        make_tar(tmp_path / "a", tmp_path / "a.tar")


def test_a_layout_names_its_platform_and_passes_its_own_check(tmp_path: Path) -> None:
    tar = make_tar(make_root(tmp_path / "a"), tmp_path / "a.tar")
    digest = layout(tmp_path / "one", tar)
    assert digest == layout(tmp_path / "two", tar) == check_layout(tmp_path / "one")
    manifest = json.loads((tmp_path / "one/blobs/sha256" / digest.removeprefix("sha256:")).read_bytes())
    config = json.loads((tmp_path / "one/blobs" / manifest["config"]["digest"].replace(":", "/")).read_bytes())
    assert (config["os"], config["architecture"], config["created"]) == ("linux", "amd64", "2023-11-14T22:13:20Z")
    assert config["config"]["Env"] == ["LANG=C.UTF-8", "PATH=/bin"]


def test_the_layer_is_linked_not_copied(tmp_path: Path) -> None:
    tar = make_tar(make_root(tmp_path / "a"), tmp_path / "a.tar")
    layout(tmp_path / "one", tar)
    assert tar.stat().st_nlink == 2


@pytest.mark.parametrize("part", ["layer", "config", "manifest", "index"])
def test_a_changed_blob_is_found(tmp_path: Path, part: str) -> None:
    digest = layout(tmp_path / "one", make_tar(make_root(tmp_path / "a"), tmp_path / "a.tar"))
    blobs = tmp_path / "one/blobs/sha256"
    manifest_path = blobs / digest.removeprefix("sha256:")
    manifest = json.loads(manifest_path.read_bytes())
    path = {
        "layer": blobs / manifest["layers"][0]["digest"].removeprefix("sha256:"),
        "config": blobs / manifest["config"]["digest"].removeprefix("sha256:"),
        "manifest": manifest_path,
        "index": tmp_path / "one/index.json",
    }[part]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(IntegrityError):
        check_layout(tmp_path / "one")


def test_a_missing_blob_is_found(tmp_path: Path) -> None:
    digest = layout(tmp_path / "one", make_tar(make_root(tmp_path / "a"), tmp_path / "a.tar"))
    (tmp_path / "one/blobs/sha256" / digest.removeprefix("sha256:")).unlink()
    with pytest.raises(IntegrityError, match="lacks"):
        check_layout(tmp_path / "one")


def test_a_digest_that_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    layout(tmp_path / "one", make_tar(make_root(tmp_path / "a"), tmp_path / "a.tar"))
    (tmp_path / "one/index.json").write_text(json.dumps({"manifests": [{"digest": "sha256:../../index.json"}]}))
    with pytest.raises(IntegrityError, match="lacks"):
        check_layout(tmp_path / "one")
