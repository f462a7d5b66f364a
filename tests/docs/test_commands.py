"""The page of commands is written from the help texts."""

from pageant.scripts.command_line import page


def test_the_page_of_commands_is_written_from_the_command_line():
    assert page.PAGE.read_text() == page.render(), "run python -m pageant.scripts.command_line.page"


def test_the_page_is_the_same_for_every_user(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("PAGEANT_LOG_LEVEL", "debug")
    assert page.PAGE.read_text() == page.render()


def test_commands_stand_before_the_benchmarks():
    text = page.render()
    assert text.index("## pageant serve\n") < text.index("## pageant bench adapters\n")
    assert text.count("`--max-num-seqs <number>`") == 1
