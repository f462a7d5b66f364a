"""Drafts and replicas change neither what a model hears nor when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pageant
from pageant.protocol.arrays import Int32Vector, Int64Vector, int32
from pageant.protocol.drafting import Speculation
from tests.integration.test_transcription import ENGINE
from tests.speech_models import Hearing, sound

SOUNDS = [sound(2, 0), sound(7.3, 1), sound(5, 2)]
ASKED: dict[str, Any] = {"language": "en", "timestamps": True, "word_timestamps": True}
OFTEN = 11
"""A token that the random model often writes."""


class Often:
    """A drafter that expects one token always, so that some drafts are right and most are not."""

    def __init__(self, settings: Speculation) -> None:
        pass

    def open(self, serial: int, token_ids: Int32Vector) -> None:
        pass

    def close(self, serial: int) -> None:
        pass

    def propose(
        self, serials: Int64Vector, counts: Int32Vector, token_ids: Int32Vector, wanted: Int32Vector
    ) -> tuple[Int32Vector, Int32Vector]:
        """Return as many drafts as are wanted."""
        return wanted, int32([OFTEN] * int(wanted.sum()))


SETTINGS: dict[str, dict[str, Any]] = {
    "drafts": {
        "speculation": {
            "method": f"{__name__}:Often",
            "tokens": 2,
            "adaptive": False,
        }
    },
    "replicas": {"replicas": 2},
}


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Hearing:
    return Hearing(Path(tmp_path_factory.mktemp("hearing")))


def heard(hearing: Hearing, **settings: Any) -> tuple[list[Any], dict[str, int]]:
    """Return what is written down, and the scheduler's counters where there is one."""
    with pageant.LLM(hearing.path, num_blocks=60, max_num_seqs=4, **settings, **ENGINE) as llm:
        found = llm.transcribe(SOUNDS, **ASKED)
        counters = {} if "replicas" in settings else llm.scheduler_statistics().counters
    return found, counters


@pytest.fixture(scope="module")
def expected(hearing: Hearing) -> list[Any]:
    return heard(hearing)[0]


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_and_their_times_are_those_of_one_engine(
    hearing: Hearing, expected: list[Any], name: str
) -> None:
    found, counters = heard(hearing, **SETTINGS[name])
    if name == "drafts":
        assert counters["drafts_proposed"] > counters["drafts_accepted"] > 0
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    for one, other in zip(found, expected, strict=True):
        times, right = (
            [time for segment in output.segments for time in segment.token_times] for output in (one, other)
        )
        np.testing.assert_allclose(times, right, atol=1e-5)
        assert np.array(right).max() > 0
