"""A folder as a source archive: the same bytes from the same files, anywhere and at any time."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from cleanroom.console import Console
from cleanroom.errors import IntegrityError, ResolveError
from cleanroom.fetch import receive
from cleanroom.lock import Entry
from cleanroom.sources.folder import FolderSource, archive_name, pack
from cleanroom.store import Store


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    (folder / "csrc").mkdir(parents=True)
    (folder / "setup.py").write_text("setup()\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "csrc/big.cu").write_bytes(os.urandom(200_000))
    (folder / "link.cu").symlink_to("csrc/big.cu")
    return folder


def test_packing_does_not_depend_on_times_owners_modes_or_leftovers(tree: Path) -> None:
    before = pack(tree, "cleanroom-vectors", "1.0")
    os.utime(tree / "setup.py", (1, 1))
    (tree / "setup.py").chmod(0o600)
    for leftover in ("__pycache__", "vectors.egg-info", "build"):
        (tree / leftover).mkdir()
        (tree / leftover / "x").write_text("x")
    (tree / "setup.pyc").write_text("x")
    assert pack(tree, "cleanroom-vectors", "1.0") == before


def test_the_archive_is_a_source_archive_that_gzip_and_tar_read(tree: Path) -> None:
    data = pack(tree, "Cleanroom-Vectors", "1.0")
    assert archive_name("Cleanroom-Vectors", "1.0") == "cleanroom_vectors-1.0.tar.gz"
    assert len(gzip.decompress(data)) > 200_000
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        names = tar.getnames()
        top = "cleanroom_vectors-1.0"
        assert names == [f"{top}/{n}" for n in ("csrc/big.cu", "link.cu", "run.sh", "setup.py")]
        assert tar.getmember(f"{top}/run.sh").mode == 0o755
        assert tar.getmember(f"{top}/link.cu").linkname == "csrc/big.cu"
        assert {(m.uid, m.gid, m.mtime, m.uname) for m in tar} == {(0, 0, 0, "")}


def test_a_change_of_any_file_changes_the_archive(tree: Path) -> None:
    before = pack(tree, "v", "1")
    (tree / "setup.py").write_text("setup( )\n")
    assert pack(tree, "v", "1") != before


def test_a_missing_or_empty_folder_and_a_link_that_leaves_are_refused(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(ResolveError, match="missing or empty"):
        pack(tmp_path / "absent", "v", "1")
    (tree / "out").symlink_to("../elsewhere")
    with pytest.raises(ResolveError, match="outside"):
        pack(tree, "v", "1")


def test_fetching_packs_again_and_notices_a_change_since_locking(tree: Path, tmp_path: Path) -> None:
    data = pack(tree, "vectors", "1.0")
    entry = Entry("source", "folder", "vectors", "1.0", "vectors-1.0.tar.gz", len(data), hashlib.sha256(data).hexdigest())
    source = FolderSource({"vectors": tree})

    def bring(store: Store) -> None:
        console = Console(stream=io.StringIO())
        receive([entry], {"folder": source}, store, console, title="Fetching", lock_again="nox -s lock -- fixture")

    bring(Store(tmp_path / "1"))
    (tree / "setup.py").write_text("changed\n")
    with pytest.raises(IntegrityError, match=r"source folder of vectors 1.0 changed since it was locked") as raised:
        bring(Store(tmp_path / "2"))
    assert "lock again" in raised.value.next_step
