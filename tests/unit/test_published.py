"""Published digests: written whole, read strictly, compared line by line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from records import component, record

from cleanroom.errors import LockError
from cleanroom.published import Published, compare, digests_of, published_path, read_published, write_published


def test_the_file_stands_beside_the_lock() -> None:
    assert published_path(Path("lockfiles/sm100-debian13.lock")) == Path("lockfiles/sm100-debian13.expected.yaml")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    published = digests_of(record())
    write_published(tmp_path / "a.expected.yaml", published, "sm100")
    assert read_published(tmp_path / "a.expected.yaml") == published
    assert (tmp_path / "a.expected.yaml").read_text().startswith("# Written by `nox -s verify-sm100`")


def test_nothing_published_is_no_error(tmp_path: Path) -> None:
    assert read_published(tmp_path / "absent.expected.yaml") is None


@pytest.mark.parametrize("text", ["", "lock: 1", "[", "lock: a\ndockerfile: b\nimage: c\nwheels: {}\nmore: d"])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.expected.yaml").write_text(text)
    with pytest.raises(LockError, match=r"expected\.yaml"):
        read_published(tmp_path / "a.expected.yaml")


def test_the_same_digests_match_to_the_byte() -> None:
    same, line = compare(record(), digests_of(record()))
    assert same is True
    assert line == "Matches what is published in this repository, to the byte: 2 of 2 wheels and the image."


def test_the_first_wheel_that_differs_is_named_with_both_digests() -> None:
    published = replace(digests_of(record()), wheels={"deepep": "cd" * 32, "deepinfer": "ab" * 32})
    same, line = compare(record(), published)
    assert same is False
    assert "deepinfer_deepep-2.5.0" in line
    assert "ab" * 32 in line
    assert "cd" * 32 in line


def test_an_image_that_differs_under_equal_wheels_is_a_difference() -> None:
    same, line = compare(record(), replace(digests_of(record()), image="sha256:" + "00" * 32))
    assert same is False
    assert "the image is sha256:f1f1" in line


@pytest.mark.parametrize(
    ("published", "said"),
    [
        (None, "Nothing is published"),
        (replace(digests_of(record()), lock="sha256:" + "00" * 32), "another lock"),
        (replace(digests_of(record()), dockerfile="00" * 32, image="sha256:" + "00" * 32), "another Dockerfile"),
    ],
)
def test_what_belongs_to_other_inputs_is_not_compared(published: Published | None, said: str) -> None:
    same, line = compare(record(), published)
    assert same is None
    assert said in line


def test_equal_bytes_match_whatever_dockerfile_made_them() -> None:
    assert compare(record(), replace(digests_of(record()), dockerfile="00" * 32))[0] is True


def test_a_build_of_one_component_matches_for_that_one() -> None:
    alone = record(components=(component("deepep", "2.5.0"),), image=None)
    assert compare(alone, digests_of(record())) == (
        True,
        "Matches what is published in this repository, to the byte: 1 of 1 wheels.",
    )
