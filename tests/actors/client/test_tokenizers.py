"""Sources of a topology's tokenizer and chat template."""

import pytest

from pageant.actors.client.chats import check_conversation
from pageant.actors.client.settings import topology_of
from pageant.actors.client.tokenizers import revision_of, tokenizer_settings
from pageant.models.errors import CheckpointError
from pageant.protocol.errors import BadRequest, TopologyError


def test_a_model_has_its_own_tokenizer_and_template(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert tokenizer_settings({}, tmp_path) == {
        "tokenizer": str(tmp_path),
        "skip_tokenizer_init": False,
        "chat_template": None,
        "has_chat_template": True,
    }


def test_another_folders_tokenizer_brings_its_template(tmp_path):
    model, other = tmp_path / "model", tmp_path / "other"
    model.mkdir()
    other.mkdir()
    (model / "chat_template.jinja").write_text("{{ messages }}")
    found = tokenizer_settings({"tokenizer": str(other)}, model)
    assert (found["tokenizer"], found["has_chat_template"]) == (str(other), False)


@pytest.mark.parametrize("written", ["{{ messages }}", "two\nlines"])
def test_a_template_may_be_written_out(tmp_path, written):
    found = tokenizer_settings({"chat_template": written}, tmp_path)
    assert (found["chat_template"], found["has_chat_template"]) == (written, True)


def test_a_template_may_be_a_file(tmp_path):
    (tmp_path / "mine.jinja").write_text("{{ messages }}")
    found = tokenizer_settings({"chat_template": str(tmp_path / "mine.jinja")}, tmp_path)
    assert found["chat_template"] == "{{ messages }}"


def test_without_a_tokenizer_there_is_no_template(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    found = tokenizer_settings({"skip_tokenizer_init": True}, tmp_path)
    assert found["skip_tokenizer_init"] and not found["has_chat_template"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"skip_tokenizer_init": 1}, "skip_tokenizer_init: found 1; expected true or false"),
        ({"tokenizer": ""}, "tokenizer: found ''; expected a text"),
        ({"tokenizer": "x", "skip_tokenizer_init": True}, "tokenizer: found one beside skip_tokenizer_init"),
        ({"chat_template": "{", "skip_tokenizer_init": True}, "chat_template: found one beside skip"),
        ({"chat_template": "nowhere.jinja"}, "chat_template: found 'nowhere.jinja', which is no file"),
        ({"tokenizer_revision": "v1"}, "tokenizer_revision: found it without `tokenizer`"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, settings, message):
    with pytest.raises(TopologyError, match=message):
        tokenizer_settings(settings, tmp_path)


def test_a_local_folder_has_no_revisions(tmp_path):
    settings = {"tokenizer": str(tmp_path), "tokenizer_revision": "v1"}
    with pytest.raises(CheckpointError, match="a local model with the revision 'v1'; expected a hub id"):
        tokenizer_settings(settings, tmp_path)


def test_a_revision_is_a_text():
    assert revision_of({}) is None and revision_of({"revision": "main"}) == "main"
    with pytest.raises(TopologyError, match="revision: found 3"):
        revision_of({"revision": 3})


def test_a_call_may_name_its_template_by_a_file(tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text("{{ messages }}")
    for given in (str(file), file, "{{ messages }}"):
        asked = check_conversation([{"role": "user", "content": "a"}], {"chat_template": given})
        assert asked.chat_template == "{{ messages }}"
    for given, words in (
        (str(tmp_path / "none"), "which is no file"),
        (5, "expected a template, or its file"),
    ):
        with pytest.raises(BadRequest, match=words):
            check_conversation([{"role": "user", "content": "a"}], {"chat_template": given})


def test_a_template_may_be_a_path(tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text("{{ messages }}")
    settings = topology_of("models/demo", None, {"chat_template": file}).settings
    assert tokenizer_settings(settings, tmp_path)["chat_template"] == "{{ messages }}"
