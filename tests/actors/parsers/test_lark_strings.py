"""Grammars of JSON's strings against those of the texts themselves, both followed by llguidance."""

import json
import random

import pytest
from llguidance import LLMatcher, LLTokenizer

from pageant.actors.parsers.lark_strings import SIZE_MAX, Unescapable, escaped_grammar

TOKENIZER = LLTokenizer("byte")
PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
ADD = '*** Begin Patch\n*** Add File: "a\\b".txt\n+print("\t\x07é😀")\n+\n*** End Patch'
UPDATE = "*** Begin Patch\n*** Update File: a\n*** Move to: b\n@@ def f():\n-\\n\n+'\n*** End of File\n*** End Patch\n"
GRAMMARS = [
    (PATCH, [ADD, UPDATE, ADD.replace("+", "-"), UPDATE.replace("\n", "\\n"), "*** Begin Patch\n"]),
    (
        r'start: (/[^a-cB"]/ | "b\\\n"i)*',
        ["", "B\\\nx", "b\\\n\\", 'x"', "a", "\x00\x1f\x7f", "b\\n", "B\\N", "\n\\", "b"],
    ),
    (
        'start: (A | "-")+ // the "only" rule\nA: /[\\s\\d]+/ | B # "\nB: /b{2}/ & /[b-z]+/',
        [" 1\n-", "1\t", "\x1c", "\r\n", "a", "\\n", "--", "bb-"],
    ),
    (r'start: "\t".."0" ~ 2..3', ["\t\t", "\n0", "/./", '""', "1", "\t", "\x08\t", '"0!', "\x1f\x1f"]),
    (
        r"start: /\x22\u005c[\n\x41-\u0043]\w{2,}\.(?:\S|\/)/",
        ['"\\\nab./', '"\\Cab.\\', '"\\Cab. ', '"\\Dab.x', '"\\Aab.\n', '\\"Aab.x'],
    ),
    (r"start: /a.\n/is", ["A\n\n", "a\\\n", "aN\n", "a\\n", 'A"\n', "a\n"]),
    (r"start: /a\n/i /.*/", ["A\n", "a\n\\", "A\\N", "a\nx\ny"]),
    (
        'start: WORD (QUOTE WORD QUOTE)* INT?\nQUOTE: "\\""\n'
        "%import common (WORD, WS)\n%import common.INT\n%ignore WS\n%ignore /#/",
        ["a", 'a "b" \n', 'a\t"b\r"12#', 'a"b', "a1\\", '"a', "ab\n\n1", "#a#"],
    ),
    (
        "?start: WORD (NL WORD)* ESCAPED_STRING?\n%import common.NEWLINE -> NL\n%import common (WORD, ESCAPED_STRING)",
        ["ab", "a\nb", "a\r\n\nb", 'a"x\\"y"', 'a"x', "\na", "a\\nb", 'a"\\\\"'],
    ),
    (r'start: ["x" /[]"]/] "\u00e9\x41"', ["éA", "x]éA", 'x"éA', "xéA"]),
]


def accepts(grammar: str, text: str) -> bool:
    matcher = LLMatcher(TOKENIZER, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = TOKENIZER.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def within_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


@pytest.mark.parametrize(("grammar", "texts"), GRAMMARS)
def test_an_escaped_grammar_takes_the_escaped_texts_of_the_grammar(grammar, texts):
    escaped, draw = escaped_grammar(grammar), random.Random(3)
    spliced = ["".join(draw.choices("".join(texts), k=draw.randrange(6))) for _ in range(60)]
    taken = {text: accepts(grammar, text) for text in [*texts, *spliced]}
    assert True in taken.values() and False in taken.values()
    assert {text: accepts(escaped, within_string(text)) for text in taken} == taken


def test_each_terminal_is_looked_at_once_however_often_others_name_it():
    grammar = "start: T0\n" + "".join(f"T{n}: T{n + 1} T{n + 1}\n" for n in range(60)) + 'T60: "a"\n'
    assert escaped_grammar(grammar).splitlines() == grammar.splitlines()


def test_the_texts_of_an_escaped_grammar_end_at_the_quote():
    within = 'start: "\\"" text "\\"}"\ntext: @inner\n'
    inner = escaped_grammar(PATCH)
    whole = {"grammars": [{"lark_grammar": within}, {"name": "inner", "lark_grammar": inner}]}
    for text in (ADD, UPDATE):
        assert accepts(json.dumps(whole), json.dumps(text, ensure_ascii=False) + "}")
    assert not accepts(json.dumps(whole), json.dumps("no patch") + "}")


@pytest.mark.parametrize(
    "grammar",
    [
        'start: A\nA[lazy]: /a/ "b"',
        "start: ~A\nA: /a/",
        "start: <tool>",
        "start: @other",
        'start: %json {"type": "string"}',
        "start: /(?i)a/",
        "start: /a b/x",
        "start: /[[:alpha:]]/",
        r"start: /[a&&b]/",
        r"start: /\p{P}/",
        r"start: /[\p{P}]/",
        'start: "ab".."c"',
        'start: "open',
        "start: (NEWLINE /a/)+\n%import common (NEWLINE, WS)\n%ignore WS",
        'start: A\nA: /a"+/ & /a./',
        "start: A\nA: B\nB: A",
        "start: T0\n" + "".join(f"T{n}: T{n + 1}\n" for n in range(1500)) + 'T1500: "a"',
        f"start: /{'.' * SIZE_MAX}/",
    ],
)
def test_a_grammar_with_parts_that_cannot_be_escaped_is_refused(grammar):
    with pytest.raises(Unescapable):
        escaped_grammar(grammar)
