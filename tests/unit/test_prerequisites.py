"""Documented needs against what an environment has."""

from __future__ import annotations

import pytest

from cleanroom.prerequisites import ABSENT, OUTSIDE, Assessment, assess, deviations
from cleanroom.target import Prerequisite

ENVIRONMENT = {
    "os": "Linux",
    "gcc": "14.2.0",
    "python": "3.13.5",
    "toolkit": "13.3.73",
    "distribution:torch": "2.13.0+cu130",
    "distribution:nvidia_nccl.cu13": "2.32.3",
}


def one(kind: str, requires: str) -> Assessment:
    (assessment,) = assess([Prerequisite("x", requires, kind, "a README")], ENVIRONMENT)
    return assessment


@pytest.mark.parametrize(
    ("kind", "requires", "verdict"),
    [
        ("os", "Linux", "met"),
        ("os", "linux", "met"),
        ("os", "Windows", "deviates"),
        ("gcc", ">=13", "met"),
        ("gcc", ">=15", "deviates"),
        ("gcc", "<15", "met"),
        ("python", "==3.12.*", "deviates"),
        ("python", ">=3.12", "met"),
        ("python", "~=3.13", "met"),
        ("toolkit", ">=13.1", "met"),
        ("toolkit", ">=13.1,<13.3", "deviates"),
        ("toolkit", "==13.*", "met"),
        ("distribution:torch", "==2.13.0+cu132", "deviates"),
        ("distribution:torch", "==2.13.0", "met"),
        ("distribution:torch", "==2.13.0+cu130", "met"),
        ("distribution:torch", "===2.13.0+cu130", "met"),
        ("distribution:torch", ">=2.14", "deviates"),
        ("distribution:nvidia-nccl-cu13", ">=2.32.3", "met"),
        ("distribution:NVIDIA_NCCL_CU13", "==2.29.7", "deviates"),
        ("distribution:absent", ">=1", "deviates"),
        ("outside", ">=580", "not verified"),
        ("outside", "deepseek-ai/DeepSeek-V4.1-Flash-1017", "not verified"),
        ("gcc", "any recent one", "not verified"),
    ],
)
def test_a_need_is_met_deviates_or_is_not_verified(kind: str, requires: str, verdict: str) -> None:
    assert one(kind, requires).verdict == verdict


def test_what_was_documented_and_what_was_found_are_kept_word_for_word() -> None:
    assert one("python", "==3.12.*") == Assessment("x", "==3.12.*", "a README", "3.13.5", "deviates", "")


def test_another_build_of_the_documented_release_is_named_as_such() -> None:
    note = one("distribution:torch", "==2.13.0+cu132").note
    assert note == "same release; documented is the build cu132, here the build cu130"


def test_another_release_is_not_called_another_build() -> None:
    assert one("distribution:torch", "==2.12.0+cu132").note == ""


def test_what_an_image_cannot_hold_says_so() -> None:
    assert one("outside", ">=580").environment == OUTSIDE


def test_what_was_looked_for_in_vain_says_so() -> None:
    assert one("distribution:absent", ">=1").environment == ABSENT


def test_a_release_candidate_counts_by_its_number() -> None:
    need = Prerequisite("torch-npu", ">=2.13.0rc1", "distribution:torch-npu", "x")
    assert assess([need], {"distribution:torch-npu": "2.13.0rc1"})[0].verdict == "met"


def test_a_version_that_is_none_is_compared_as_text() -> None:
    need = Prerequisite("driver", "r580", "toolkit", "x")
    assert assess([need], {"toolkit": "r580"})[0].verdict == "met"
    (other,) = assess([need], {"toolkit": "r570"})
    assert (other.verdict, other.note) == ("not verified", "cannot be compared as versions")


def test_order_is_kept_and_only_deviations_become_sentences() -> None:
    needs = [
        Prerequisite("Python", "==3.12.*", "python", "DeepInfer README"),
        Prerequisite("GCC", ">=13", "gcc", "DeepInfer README"),
        Prerequisite("torch", "==2.13.0+cu132", "distribution:torch", "requirements-nvidia.txt"),
        Prerequisite("driver", ">=580", "outside", "CUDA"),
    ]
    found = assess(needs, ENVIRONMENT)
    assert [a.name for a in found] == ["Python", "GCC", "torch", "driver"]
    assert deviations(found) == (
        "Python: documented ==3.12.* (DeepInfer README), here 3.13.5",
        f"torch: documented ==2.13.0+cu132 (requirements-nvidia.txt), here 2.13.0+cu130; {found[2].note}",
    )
