"""Images compared: layers file by file, configuration field by field; every planted difference is found and named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import images
import pytest
from images import EPOCH, image

from cleanroom.differ import compare_images
from cleanroom.errors import IntegrityError

SITE = "opt/venv/lib/python3.13/site-packages"
FILES: Mapping[str, bytes] = {
    f"{SITE}/engine/__init__.py": b"x = 1\n",
    f"{SITE}/engine-1.0.dist-info/RECORD": b"engine/__init__.py,sha256=a,6\nengine-1.0.dist-info/RECORD,,\n",
    "etc/config": b"setting=1\n",
}
HARMLESS = "identical after named normalisations"


def layer(files: Mapping[str, bytes] = FILES, **how: Any) -> bytes:
    return images.layer(files, **how)


def compared(tmp_path: Path, first: bytes, second: bytes) -> tuple[str, list[tuple[str, str, str]]]:
    level, differences = compare_images(image(tmp_path / "a.tar", first), image(tmp_path / "b.tar", second))
    assert all(d.component == "image" and d.remedy for d in differences)
    return level, [(d.file, d.part, d.cause) for d in differences if not d.cause.startswith("digests of layers")]


def test_the_same_manifest_is_an_identical_image_whatever_is_around_it(tmp_path: Path) -> None:
    first, second = (image(tmp_path / f"{n}.tar", layer(), attested=True, outer_time=n) for n in (1, 2))
    assert first.read_bytes() != second.read_bytes()
    assert compare_images(first, second) == ("identical image", ())


@pytest.mark.parametrize("pack", ["gzip", "zstd"])
def test_another_compression_of_the_same_layer_is_named(tmp_path: Path, pack: str) -> None:
    first, second = image(tmp_path / "a.tar", layer()), image(tmp_path / "b.tar", layer(), pack=pack)
    level, differences = compare_images(first, second)
    assert level == HARMLESS
    assert [d.part for d in differences] == ["compression of layers"]


@pytest.mark.parametrize("pack", ["", "gzip", "zstd"])
def test_a_changed_file_is_located_in_a_layer_of_any_compression(tmp_path: Path, pack: str) -> None:
    name = f"{SITE}/engine/__init__.py"
    first = image(tmp_path / "a.tar", layer({"x": b"1"}), layer(), pack=pack)
    second = image(tmp_path / "b.tar", layer({"x": b"1"}), layer({**FILES, name: b"x = 2\n"}), pack=pack)
    level, differences = compare_images(first, second)
    assert level == "identical device code"
    assert [(d.file, d.cause) for d in differences if d.level == level] == [(name, "unknown")]
    assert "+x = 2" in differences[0].detail


@pytest.mark.parametrize(
    ("fields", "level", "part", "cause"),
    [
        ({"mtime": EPOCH + 5}, HARMLESS, "layer 1 modification times", "times of files in a layer"),
        ({"mode": 0o664}, HARMLESS, "layer 1 permissions", "permission bits (umask)"),
        ({"mode": 0o755}, "identical device code", "layer 1 permissions", "unknown"),
        ({"uid": 1000}, "identical device code", "layer 1 owners", "owner of a file"),
        ({"uname": "builder"}, "identical device code", "layer 1 owners", "owner of a file"),
        ({"pax_headers": {"SCHILY.xattr.user.x": "1"}}, "identical device code", "layer 1 extended attributes", "unknown"),
        ({"pax_headers": {"atime": "5.5"}}, HARMLESS, "layer 1 other times", "times of files in a layer"),
    ],
)
def test_metadata_is_compared(tmp_path: Path, fields: Mapping[str, Any], level: str, part: str, cause: str) -> None:
    one = {"etc/config": b"setting=1\n"}
    assert compared(tmp_path, layer(one), layer(one, **fields)) == (level, [("etc/config", part, cause)])


def test_many_files_with_other_times_are_one_difference(tmp_path: Path) -> None:
    level, found = compared(tmp_path, layer(), layer(mtime=EPOCH + 1))
    assert (level, found) == (HARMLESS, [("", "layer 1 modification times", "times of files in a layer")])


def test_another_order_of_files_is_named(tmp_path: Path) -> None:
    level, found = compared(tmp_path, layer(), layer(order=sorted(FILES)))
    assert (level, found) == (HARMLESS, [("", "layer 1 order of files", "order of files in a layer")])


def test_another_link_is_found(tmp_path: Path) -> None:
    level, found = compared(tmp_path, layer(links={"lib": "usr/lib"}), layer(links={"lib": "usr/lib32"}))
    assert (level, found) == ("identical device code", [("lib", "layer 1 links", "unknown")])
    level, found = compared(tmp_path, layer(links={"lib": "usr/lib"}), layer())
    assert (level, found) == ("identical device code", [("lib", "", "unknown")])


def test_bytecode_and_leftovers_of_one_side_are_named(tmp_path: Path) -> None:
    more = {f"{SITE}/engine/__pycache__/__init__.cpython-313.pyc": b"\xf3\r\r\n", "var/log/dpkg.log": b"2026 install\n"}
    level, found = compared(tmp_path, layer(), layer({**FILES, **more}))
    assert level == HARMLESS
    assert [(file, cause.split(":")[0]) for file, _, cause in found] == [
        (f"{SITE}/engine/__pycache__/__init__.cpython-313.pyc", "Python bytecode"),
        ("var/log/dpkg.log", "log or cache that a tool leaves behind"),
    ]


def test_a_record_in_the_image_knows_the_files_beside_it(tmp_path: Path) -> None:
    record = f"{SITE}/engine-1.0.dist-info/RECORD"
    level, found = compared(tmp_path, layer(), layer({**FILES, record: FILES[record].replace(b"sha256=a", b"sha256=b")}))
    assert (level, found) == ("identical device code", [(record, "", "unknown")])


def test_configuration_is_compared_by_field(tmp_path: Path) -> None:
    first = image(tmp_path / "a.tar", layer())
    level, differences = compare_images(first, image(tmp_path / "b.tar", layer(), created="2026-12-01T00:00:00Z"))
    assert (level, [d.cause for d in differences]) == (HARMLESS, ["creation time in the image's configuration"])
    level, differences = compare_images(first, image(tmp_path / "c.tar", layer(), env=("PATH=/opt/bin",)))
    assert level == "identical device code"
    assert [(d.part, d.detail) for d in differences] == [("configuration config.Env[0]", ("PATH=/usr/bin | PATH=/opt/bin",))]


def test_another_number_of_layers_is_found(tmp_path: Path) -> None:
    first, second = image(tmp_path / "a.tar", layer()), image(tmp_path / "b.tar", layer(), layer({"new": b"1"}))
    level, differences = compare_images(first, second)
    assert level == "identical device code"
    assert [d.part for d in differences if d.cause == "unknown"] == ["layer 2"]


def test_padding_of_a_layer_is_not_overlooked(tmp_path: Path) -> None:
    level, found = compared(tmp_path, layer(), layer() + bytes(10240))
    assert (level, found) == ("identical device code", [("", "layer 1 tar format", "unknown")])


@pytest.mark.parametrize("content", [b"", b"no archive", b"x" * 2048])
def test_a_file_that_is_no_image_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.tar").write_bytes(content)
    with pytest.raises(IntegrityError, match=r"broken\.tar cannot be read as an image"):
        compare_images(image(tmp_path / "good.tar", layer()), tmp_path / "broken.tar")
    with pytest.raises(IntegrityError, match=r"absent\.tar"):
        compare_images(tmp_path / "absent.tar", tmp_path / "good.tar")


def test_an_image_that_lost_a_layer_or_was_altered_is_an_error(tmp_path: Path) -> None:
    good = image(tmp_path / "good.tar", layer())
    other = image(tmp_path / "other.tar", layer({"x": b"1"}), pack="zstd")
    data = other.read_bytes()
    place = data.find(b"\x28\xb5\x2f\xfd")
    (tmp_path / "bad.tar").write_bytes(data[: place + 20] + bytes([data[place + 20] ^ 0xFF]) + data[place + 21 :])
    with pytest.raises(IntegrityError, match="cannot be read as an image"):
        compare_images(good, tmp_path / "bad.tar")
    (tmp_path / "cut.tar").write_bytes(data[: data.find(b'"rootfs"')])
    with pytest.raises(IntegrityError, match="cannot be read as an image"):
        compare_images(good, tmp_path / "cut.tar")
