"""Observer: whom it asks, and what it makes of no answer."""

from types import SimpleNamespace

from pageant.actors.observer.actor import Observer
from pageant.protocol.errors import DeadlineExceeded, PeerGone, RemoteError
from pageant.protocol.fronting import ServedModel
from pageant.protocol.scheduling import SchedulerStatistics
from pageant.protocol.statistics import GetObservation
from pageant.protocol.supervision import ActorEntry, Directory, NodeEntry

MODELS = [
    ServedModel(
        name=name,
        replica=replica,
        folder="",
        vocab_size=1,
        max_model_len=1,
        max_logprobs=0,
        generation_config="auto",
    )
    for name, replica in (("first", ""), ("second", "second/"))
]


class Looking(Observer):
    """One whose asks are answered from a table; what is not there is down."""

    clock = SimpleNamespace(now=lambda: 5.0)

    def __init__(self, actors, answers):
        super().__init__(Observer.Options(served=tuple(MODELS), answer_seconds=1.0))
        entries = tuple(
            ActorEntry(name=name, node="front", incarnation=1, up=up) for name, up in actors.items()
        )
        nodes = (NodeEntry(name="front", incarnation=1, endpoint=""),)
        self.answers = answers | {"supervisor": Directory(version=1, nodes=nodes, actors=entries)}
        self.asked = []

    async def ask(self, address, request, timeout, *, again=False):
        self.asked.append(address)
        answer = self.answers.get(address, PeerGone("down"))
        if isinstance(answer, Exception):
            raise answer
        return answer


def scheduler(running):
    return SchedulerStatistics(num_waiting=0, num_running=running, counters={})


async def test_who_does_not_answer_is_missing_and_who_is_down_is_not_asked():
    observer = Looking(
        {
            "scheduler": True,
            "second/scheduler": True,
            "blocks": True,
            "executor/0": True,
            "executor/1": False,
        },
        {
            "scheduler": scheduler(3),
            "second/scheduler": scheduler(4),
            "blocks": DeadlineExceeded("slow"),
            "executor/0": RemoteError("executor/0", "TypeError", "takes no GetExecutorStatistics"),
        },
    )
    seen = await observer.observe(GetObservation())
    assert {name: one.num_running for name, one in seen.schedulers.items()} == {
        "scheduler": 3,
        "second/scheduler": 4,
    }
    assert seen.pools == seen.executors == seen.nodes == {} and seen.at == 5.0
    assert "executor/1" not in observer.asked and "executor/0" in observer.asked
    assert [actor.up for actor in seen.actors] == [True, True, True, True, False]


async def test_each_models_figures_bear_its_name():
    observer = Looking(
        {"scheduler": True, "second/scheduler": True},
        {"scheduler": scheduler(3), "second/scheduler": scheduler(4)},
    )
    page = await observer.page(None)
    for name, running in (("first", 3), ("second", 4)):
        assert f'num_requests_running{{model_name="{name}",engine="0"}} {running}\n' in page.text
