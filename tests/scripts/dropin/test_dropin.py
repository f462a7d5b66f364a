"""The harness that runs what is written for vLLM: what it changes, what it reads, and what it makes of an outcome."""

import json
import textwrap

import pytest

from pageant.actors.client.vllm_names import engine, values
from pageant.scripts.dropin import page
from pageant.scripts.dropin.cases import OFFLINE, ONLINE
from pageant.scripts.dropin.hub import Hub
from pageant.scripts.dropin.recording import record
from pageant.scripts.dropin.running import is_of_table, ported, reason


def test_one_word_and_the_port_are_changed_and_nothing_else():
    source = textwrap.dedent(
        """\
        # from vllm: see localhost:8000
        from vllm import LLM
        if True:
            import vllm
        from vllm.v1.engine import x
        print("vllm serve", "from vllm", "http://127.0.0.1:8000/v1", 80001)
        """
    )
    assert ported(source, 4321) == textwrap.dedent(
        """\
        # from vllm: see localhost:4321
        from pageant import LLM
        if True:
            import pageant as vllm
        from pageant.v1.engine import x
        print("vllm serve", "from vllm", "http://127.0.0.1:4321/v1", 80001)
        """
    )


def test_a_reason_is_the_last_error_and_known_to_be_the_tables():
    log = (
        "loading\nTraceback (most recent call last):\n  x\nValueError: kv_cache_dtype: found 'nvfp4'\n\nbye\n"
    )
    assert reason(log) == "ValueError: kv_cache_dtype: found 'nvfp4'"
    assert reason("\n") == "it said nothing"
    row = engine.ENGINE["load_format"]
    assert is_of_table(f"pageant: --load-format: {row.refusal('dummy')}")
    with pytest.raises(ValueError) as refused:
        values.kv_cache_dtype("nvfp4")
    assert is_of_table(f"pageant: --kv-cache-dtype: {refused.value}")
    assert not is_of_table("RuntimeError: out of memory")


def test_stand_ins_lie_where_the_hub_client_looks_for_them(tmp_path, monkeypatch):
    hub = Hub(tmp_path)
    folder = hub.add("BAAI/bge-m3")
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertModel"]
    assert hub.add("BAAI/bge-m3") == folder and hub.add("nobody/knows-it") is None
    assert (tmp_path / "hub" / "models--BAAI--bge-m3" / "refs" / "main").read_text() == folder.name
    assert hub.add_all("""x = "BAAI/bge-m3" + 'nobody/knows-it'""") == ["nobody/knows-it"]


def test_servers_are_read_from_tests_without_what_they_import(tmp_path):
    files = {
        "utils.py": "raise RuntimeError('is not executed')",
        "conftest.py": """
            import pytest
            @pytest.fixture(scope="session")
            def lora_files():
                from huggingface_hub import snapshot_download
                return snapshot_download(repo_id="a/lora")
        """,
        "entry/test_one.py": """
            import json
            import pytest
            import torch
            from tests.utils import RemoteOpenAIServer, VLLM_PATH
            from vllm.platforms import current_platform
            from .constants import NAME
            @pytest.fixture(params=["a", pytest.param("b", id="x")])
            def extra(request):
                return [] if current_platform.is_rocm() else ["--extra", request.param]
            @pytest.fixture
            def server(extra, lora_files):
                args = ["--port", "80", *extra, "--lora", f"x={lora_files}", "--js", json.dumps({"y": 1})]
                with RemoteOpenAIServer(NAME, args, env_dict={"V": 1}, seed=None) as remote:
                    yield remote
            @pytest.mark.parametrize("count", [1, 2])
            @pytest.mark.asyncio
            async def test_in_its_body(count: int):
                with RemoteOpenAIServer("m/two", ["--count", str(count)], override_hf_configs={"z": 1}):
                    pass
            def test_unknown(number):
                RemoteOpenAIServer("m/three", [str(number)])
            class Manager:
                def start(self):
                    RemoteOpenAIServer("m/four", [])
        """,
        "entry/constants.py": 'NAME = "m/one"',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    found = record(tmp_path)
    flags = [[one["model"], *one["flags"]] for one in found["launches"]]
    lora = ["--lora", "x=hub://a/lora", "--js", '{"y": 1}']
    assert sorted(flags) == [
        ["m/four", "--seed", "0"],
        ["m/one", "--port", "80", "--extra", "a", *lora],
        ["m/one", "--port", "80", "--extra", "b", *lora],
        ["m/two", "--count", "1", "--seed", "0", "--hf-overrides", '{"z": 1}'],
        ["m/two", "--count", "2", "--seed", "0", "--hf-overrides", '{"z": 1}'],
    ]
    assert found["launches"][0]["environment"] == {"V": "1"} and found["unread"] == []


@pytest.mark.skipif(not page.RESULTS.exists(), reason="nothing was measured yet")
def test_the_results_are_of_the_examples_that_there_are():
    kept = json.loads(page.RESULTS.read_text())
    for kind, listed in (("online examples", ONLINE), ("offline examples", OFFLINE)):
        assert [one["name"] for one in kept[kind]["outcomes"]] == [one.path for one in listed]
