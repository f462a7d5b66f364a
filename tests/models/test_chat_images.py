"""Images of conversations in the form that a template takes."""

import pytest

from pageant.models.chat_images import ContentKinds, Medium, find_kinds, for_template, marked
from pageant.models.chat_template import ChatTemplates

PARTS = (
    "{% for part in message.content %}{% if part.type == 'image' %}<image>{% elif part.type == 'video' %}<video>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}"
)
LISTS = f"{{% for message in messages %}}[{{{{ message.role }}}}]{PARTS}{{% endfor %}}"
TEXTS = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
BOTH = (
    "{% for message in messages %}[{{ message.role }}]{% if message.content is string %}{{ message.content }}"
    f"{{% else %}}{PARTS}{{% endif %}}{{% endfor %}}"
)
KINDS = {
    LISTS: ContentKinds(texts=False, lists=True),
    TEXTS: ContentKinds(texts=True, lists=False),
    BOTH: ContentKinds(texts=True, lists=True),
}


PLACEHOLDERS = {Medium.IMAGE: "<image>", Medium.VIDEO: "<video>"}


def render(template, messages):
    templates = ChatTemplates({"default": template}, special_tokens={}, origin="here")
    return templates.render(messages, add_generation_prompt=False)


@pytest.mark.parametrize("template", KINDS)
def test_templates_show_which_contents_they_take(template):
    assert find_kinds(lambda messages: render(template, messages)) == KINDS[template]


@pytest.mark.parametrize("template", KINDS)
def test_images_stand_where_they_were_among_texts(template):
    messages = [
        {"role": "system", "content": "Look."},
        {"role": "user", "content": marked(["first", Medium.IMAGE, Medium.VIDEO, "second", Medium.IMAGE])},
    ]
    found = render(template, for_template(messages, KINDS[template], PLACEHOLDERS))
    assert found.replace("\n", "") == "[system]Look.[user]first<image><video>second<image>"


def test_marks_in_a_users_text_are_no_images():
    content = marked(["a\ufdd0b\ufdd1c\ufdd2", Medium.IMAGE])
    (message,) = for_template([{"role": "user", "content": content}], ContentKinds(lists=True), PLACEHOLDERS)
    assert message["content"] == [{"type": "text", "text": "abc"}, {"type": "image"}]
