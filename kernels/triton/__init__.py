"""The GPU backend: Triton kernels for float32, float16 and bfloat16. Correct in Triton's interpreter on a CPU.

Each function takes the arguments of `pageant.kernels.base.Kernels`. Nothing here waits for the device, and no
shape depends on what is on it, so all of it can be captured in a CUDA graph. Kernels run on the current CUDA
device: whoever calls sees to it that this is the tensors' own. Products with whole weights are cuBLAS's.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

# As it has always been; Triton 3.9 warns where nothing is said, since its default is about to change.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

from pageant.kernels.reference import ReferenceKernels
from pageant.kernels.reference.cache import move_slots
from pageant.kernels.triton.attention import paged_attention
from pageant.kernels.triton.cache import move_kv, write_kv
from pageant.kernels.triton.convolution import causal_conv
from pageant.kernels.triton.experts import moe, route, weigh_experts
from pageant.kernels.triton.heads import rope, rope_and_write_kv
from pageant.kernels.triton.interpreting import mend_interpreter
from pageant.kernels.triton.loading import (
    count_loads,
    is_loading,
    num_loaded,
    reset_loading,
    warn_of_loads,
)
from pageant.kernels.triton.logprobs import top_logprobs
from pageant.kernels.triton.norms import (
    add_layer_norm,
    add_rms_norm,
    add_wide_rms_norm,
    layer_norm,
    rms_norm,
    wide_rms_norm,
)
from pageant.kernels.triton.pointwise import clamped_swiglu, gelu, gelu_and_mul, silu_and_mul
from pageant.kernels.triton.products import linear, logits
from pageant.kernels.triton.recurrence import gated_delta_net, state_space
from pageant.kernels.triton.sampling import mask_logits, sample

__all__ = ["TritonKernels"]

mend_interpreter()
count_loads()


class TritonKernels(ReferenceKernels):
    """Implements `pageant.kernels.base.Kernels`, whose docstrings are the contract."""

    name = "triton"

    write_kv = staticmethod(write_kv)
    move_kv = staticmethod(move_kv)
    move_slots = staticmethod(move_slots)
    paged_attention = staticmethod(paged_attention)
    rms_norm = staticmethod(rms_norm)
    add_rms_norm = staticmethod(add_rms_norm)
    wide_rms_norm = staticmethod(wide_rms_norm)
    add_wide_rms_norm = staticmethod(add_wide_rms_norm)
    layer_norm = staticmethod(layer_norm)
    add_layer_norm = staticmethod(add_layer_norm)
    rope = staticmethod(rope)
    rope_and_write_kv = staticmethod(rope_and_write_kv)
    silu_and_mul = staticmethod(silu_and_mul)
    gelu_and_mul = staticmethod(gelu_and_mul)
    clamped_swiglu = staticmethod(clamped_swiglu)
    gelu = staticmethod(gelu)
    route = staticmethod(route)
    moe = staticmethod(moe)
    weigh_experts = staticmethod(weigh_experts)
    gated_delta_net = staticmethod(gated_delta_net)
    causal_conv = staticmethod(causal_conv)
    state_space = staticmethod(state_space)
    linear = staticmethod(linear)
    logits = staticmethod(logits)
    mask_logits = staticmethod(mask_logits)
    sample = staticmethod(sample)
    top_logprobs = staticmethod(top_logprobs)

    def num_loaded(self) -> int:
        """See `PreparedKernels.num_loaded`."""
        return num_loaded()

    def is_loading(self) -> bool:
        """See `PreparedKernels.is_loading`."""
        return is_loading()

    def warn_of_loads(self) -> None:
        """See `PreparedKernels.warn_of_loads`."""
        warn_of_loads()

    def precompile(self, compute: Callable[[], None], device: torch.device) -> None:
        """See `PreparedKernels.precompile`."""
        from pageant.kernels.triton.precompiling import collect_launches, compile_in_parallel

        reset_loading()
        with collect_launches() as launches:
            compute()
        compile_in_parallel(list(launches), _architecture(device))


def _architecture(device: torch.device) -> str:
    """Return the device's compute capability as compilers write it, such as sm_90."""
    return "sm_{}{}".format(*torch.cuda.get_device_capability(device))
