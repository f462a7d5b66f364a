import numpy as np

from pageant.actors.runtime.traffic import TrafficCounts, resident_bytes


def test_messages_and_all_their_frames_are_counted_by_actor_and_kind():
    counts = TrafficCounts()
    counts.sent("a", "Ping", [b"head", b"body", np.zeros((2, 3), np.int32)])
    counts.sent("a", "Ping", [b"head", memoryview(np.zeros(5, np.int64))])
    counts.received("a", "Pong", [b"head", b""])
    counts.received("b", "Ping", [b"x"])
    found = {(entry.actor, entry.kind): entry for entry in counts.statistics()}
    assert list(found) == [("a", "Ping"), ("a", "Pong"), ("b", "Ping")]
    ping, pong = found["a", "Ping"], found["a", "Pong"]
    assert (ping.sent, ping.sent_bytes, ping.received) == (2, 4 + 4 + 24 + 4 + 40, 0)
    assert (pong.sent, pong.received, pong.received_bytes) == (0, 1, 4)


def test_this_process_has_memory():
    assert resident_bytes() > 2**20
