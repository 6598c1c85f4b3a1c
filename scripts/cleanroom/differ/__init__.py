"""Two builds of one thing compared, with the cause of each difference: the levels of a verdict are computed here.

What the level of a difference promises, the strongest first: with only such differences, two files are
"identical after named normalisations" (each has a known, harmless cause, and nothing else differs), hold "identical
device code" (kernel by kernel; the host's part differs), the "same architectures" and kernels (their code differs), or
just both "build". The level of a pair is the weakest of its differences.
"""

from cleanroom.differ.archive import compare_wheels
from cleanroom.differ.image import compare_images

__all__ = ["compare_images", "compare_wheels"]
