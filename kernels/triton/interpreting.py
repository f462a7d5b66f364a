"""A repair of older Triton interpreters, so that the kernels run in that of every supported release."""

from __future__ import annotations

from typing import Any

import triton

__all__ = ["mend_interpreter"]

_MENDED_IN = (3, 9)


def mend_interpreter() -> None:
    """Let scalars of the interpreter be loop bounds with numpy 2.4 or later. Does nothing where Triton compiles.

    Triton 3.6 holds a scalar as an array of one element and converts it by `int`, which numpy 2.4 refuses.
    """
    release = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if release >= _MENDED_IN or not triton.knobs.runtime.interpret:
        return
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch_scalars(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda scalar: int(scalar.handle.data.item()))

    interpreter._patch_lang_tensor = patch_scalars
