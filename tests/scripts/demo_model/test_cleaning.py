"""The cleaned text reads as English: no markup, no grammar, whole sentences."""

from pageant.scripts.demo_model.cleaning import excerpt, is_prose, paragraphs, plain, sentences


def test_inline_markup_is_taken_off() -> None:
    assert plain("See :func:`len` and ``x + 1``") == 'See "len" and "x + 1"'
    assert plain("this is *very*\nimportant [1]") == "this is very important"
    assert plain("the iterator’s “item”") == 'the iterator\'s "item"'


def test_words_broken_at_a_hyphen_are_joined() -> None:
    assert plain("a non-\nnumeric type") == "a non-numeric type"


def test_references_to_sections_are_taken_out() -> None:
    assert plain("defined by a manager (see section With Statements). Then") == "defined by a manager. Then"


def test_code_grammar_and_headings_are_not_prose() -> None:
    assert is_prose("The statement is used to loop over things.")
    assert not is_prose('   for_stmt ::= "for" target_list')
    assert not is_prose(">>> print(1 + 2) and more words")
    assert not is_prose("A title of a page\n=================")


def test_paragraphs_keep_their_indentation() -> None:
    assert paragraphs("one\ntwo\n\n   three\n") == ["one\ntwo", "   three"]


def test_abbreviations_do_not_end_a_sentence() -> None:
    assert sentences("Use a type, e.g. Decimal, here. Then stop.") == [
        "Use a type, e.g. Decimal, here.",
        "Then stop.",
    ]


def test_an_excerpt_holds_whole_sentences_and_announces_nothing() -> None:
    pieces = [
        "It loops.",
        "The syntax is as follows:",
        "It then stops:",
        "A sentence that is too long to fit.",
    ]
    assert excerpt(pieces, 30) == "It loops. It then stops."
