"""vLLM's import paths, and its public names that are not there."""

import importlib
import subprocess
import sys

import pytest

import pageant
from pageant.actors.client.vllm_names.methods import EXPORTS
from pageant.actors.client.vllm_names.modules import MODULES, find
from pageant.actors.client.vllm_names.rows import Kind
from pageant.actors.client.vllm_names.translating import translated


@pytest.mark.parametrize("name", MODULES)
def test_every_module_has_its_names(name):
    module = importlib.import_module(f"pageant.{name}")
    assert set(dir(module)) == set(MODULES[name])
    assert all(getattr(module, one) is not None for one in MODULES[name])


@pytest.mark.parametrize("name", EXPORTS)
def test_a_public_name_is_here_or_says_why_not_when_it_is_used(name):
    found = getattr(pageant, name)
    if EXPORTS[name].kind is not Kind.NOT_YET:
        assert found is not None
        return
    for use in (found, lambda: found.register):
        with pytest.raises(pageant.Unsupported) as error:
            use()
        assert EXPORTS[name].meaning in str(error.value)


def test_the_same_class_under_both_paths():
    from pageant.sampling_params import SamplingParams  # type: ignore[import-not-found]

    assert SamplingParams is pageant.SamplingParams is find("SamplingParams")


def test_what_is_nowhere_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"pageant\.nonsense"):
        importlib.import_module("pageant.nonsense")
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = pageant.Nonsense
    with pytest.raises(ImportError, match="Nope"):
        exec("from pageant.outputs import Nope", {})


def test_importing_pageant_loads_nothing_but_itself():
    code = "import sys, pageant; print([one for one in sys.modules if one.startswith('pageant')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['pageant']"


def test_holders_of_arguments_are_mappings():
    config = importlib.import_module("pageant.config").ProfilerConfig(profiler="torch")
    assert config == {"profiler": "torch"} and config.profiler == "torch"
    with pytest.raises(AttributeError, match="ProfilerConfig was given no other"):
        _ = config.other


def test_choices_that_change_nothing_are_texts_of_their_names():
    from pageant.config import CompilationConfig, CUDAGraphMode
    from pageant.config.compilation import CompilationMode, PassConfig

    passes = PassConfig(fuse_norm_quant=True)
    config = CompilationConfig(
        mode=CompilationMode.VLLM_COMPILE, cudagraph_mode=CUDAGraphMode.FULL, pass_config=passes
    )
    assert config.mode == "VLLM_COMPILE" and config.pass_config.fuse_norm_quant
    assert translated({"compilation_config": config}) == {}


def test_a_tensor_in_base64_is_read_as_prompt_embeds():
    import torch

    from pageant.actors.frontend.embeds import decode_embeds
    from pageant.utils.serial_utils import tensor2base64

    tensor = torch.randn(3, 4, requires_grad=True)
    assert torch.equal(torch.from_numpy(decode_embeds(tensor2base64(tensor))), tensor.detach())
