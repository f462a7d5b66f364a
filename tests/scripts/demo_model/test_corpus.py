"""The language reference comes out as sections of prose and as definitions."""

from pageant.scripts.demo_model.corpus import definitions, sections, topic_sections


def test_a_topic_starts_with_its_own_section() -> None:
    section = topic_sections("with")[0]
    assert section.title == "The with statement"
    assert section.sentences()[0].startswith('The "with" statement is used to wrap')


def test_no_section_holds_grammar_or_underlines() -> None:
    text = "\n".join(paragraph for section in sections() for paragraph in section.prose)
    assert len(text) > 100_000
    assert "::=" not in text
    assert "====" not in text
    assert ">>>" not in text


def test_definitions_are_found_by_their_name() -> None:
    found = definitions()
    assert "string representation" in found["object.__repr__"]
    assert "list of the words" in found["str.split"]
