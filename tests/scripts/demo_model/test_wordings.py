"""Questions vary in their wording, and keep their subject."""

from random import Random

from pageant.scripts.demo_model.wordings import NAME_FRAMES, TOPIC_FRAMES, ask


def test_every_frame_has_one_slot_and_appears_once() -> None:
    for frames in (TOPIC_FRAMES, NAME_FRAMES):
        assert all(frame.count("{}") == 1 for frame in frames)
        assert len(set(frames)) == len(frames)


def test_a_question_always_holds_its_subject() -> None:
    random = Random(0)
    assert all("os.walk" in ask(random, "os.walk", NAME_FRAMES).lower() for _ in range(500))


def test_wordings_hardly_repeat() -> None:
    random = Random(0)
    assert len({ask(random, "the with statement", TOPIC_FRAMES) for _ in range(500)}) > 350
