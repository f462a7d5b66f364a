"""Copies that sum up what they copy, by the compiled library."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pageant.kernels.cpu.library import Library
from pageant.kernels.host_copies import CopyParts, PartCopies

__all__ = ["copier"]


def copier(library: Library) -> CopyParts:
    """Return the library's copies, which any thread may make at any time. The GIL is released meanwhile."""
    function = library.copy_parts

    def copy_parts(copies: PartCopies, sums: npt.NDArray[np.uint64]) -> None:
        """Copy parts; see `CopyParts`."""
        assert all(one.dtype == np.int64 and one.flags.c_contiguous for one in copies), "int64, contiguous"
        assert sums.dtype == np.uint64 and sums.flags.c_contiguous, "uint64, contiguous"
        assert len(sums) == copies.counts.sum(), "a sum for each part"
        function(len(copies.sources), *(one.ctypes.data for one in copies), sums.ctypes.data)

    return copy_parts
