"""Official base images, by digest. The engine pulls them from its registry; nothing of them is in the store."""

from __future__ import annotations

import hashlib
import shutil
import subprocess

from cleanroom.lock import Entry

ANSWER_SECONDS = 30


def image_entry(image: str, digest: str) -> Entry:
    """The entry of an image. Its size is not known, 0: the digest is of the manifest, which a registry holds."""
    return Entry("base", "image", image, digest, image, 0, digest.removeprefix("sha256:"))


def confirmed(image: str, digest: str) -> bool:
    """Whether a Docker here got a manifest with this digest from the image's registry."""
    if shutil.which("docker") is None:
        return False
    command = ["docker", "buildx", "imagetools", "inspect", "--raw", f"{image.partition('@')[0]}@{digest}"]
    try:
        answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and f"sha256:{hashlib.sha256(answer.stdout).hexdigest()}" == digest
