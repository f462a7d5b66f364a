"""The packaged demo model, served by the engine, answers questions in wordings that it was not trained on."""

from __future__ import annotations

import pageant
from pageant.scripts.demo_model.check import check
from pageant.scripts.engine_options import DEMO_MODEL


def test_at_least_15_of_20_answers_are_about_the_right_topic():
    params = pageant.SamplingParams(temperature=0, max_tokens=80)
    with pageant.LLM(DEMO_MODEL, placement="one", progress=False, threads=1) as llm:

        def answer(question: str) -> str:
            return llm.chat([{"role": "user", "content": question}], params)[0].outputs[0].text

        verdicts = check(answer)
    assert len(verdicts) == 20
    on_topic = [verdict for verdict in verdicts if verdict.on_topic]
    assert len(on_topic) >= 15, [verdict.question for verdict in verdicts if not verdict.on_topic]
