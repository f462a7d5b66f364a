"""Blocks on a host's disk: a file without a name, which is gone when its process is, however that ends.

It is read and written with plain calls, not mapped: a disk that is full is an error then, and not a signal.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pageant.protocol.errors import ConfigurationError

SHARE = 0.9  # of what is free on the disk

UInt8 = npt.NDArray[np.uint8]


class DiskFile:
    """Bytes that are written before they are read.

    Args:
        owner: on whose host the folder is.

    Raises:
        ConfigurationError: there is no such folder, or nothing can be written there.
    """

    def __init__(self, folder: str, owner: str = "executor") -> None:
        if not Path(folder).is_dir():
            raise ConfigurationError(f"disk_path is {folder!r}, which is no folder on the {owner}'s host")
        try:
            self._file, name = tempfile.mkstemp(prefix="pageant-kv-", dir=folder)
        except OSError as error:
            raise ConfigurationError(
                f"disk_path is {folder!r}, where no file can be made: {error}"
            ) from error
        os.unlink(name)
        weakref.finalize(self, os.close, self._file)  # when nobody moves anything any more
        self.bytes_free = int(shutil.disk_usage(folder).free * SHARE)

    def write(self, at: int, data: UInt8) -> None:
        """Write bytes, uint8 [N], from byte `at` on."""
        view = data.data
        while view:
            done = os.pwrite(self._file, view, at)
            at, view = at + done, view[done:]

    def read(self, at: int, into: UInt8) -> None:
        """Fill `into`, uint8 [N], with the bytes from `at` on."""
        view = into.data
        while view:
            done = os.preadv(self._file, [view], at)
            assert done, f"byte {at} of the disk is read before it was written"
            at, view = at + done, view[done:]
