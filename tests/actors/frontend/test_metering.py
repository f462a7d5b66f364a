from pageant.actors.frontend.metering import Metering
from pageant.protocol.errors import Overloaded, PeerGone, StartupError
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.serving import Finished


def seen(metering, name):
    """Return the number of values, and their sum."""
    counts = metering.histograms()[name]
    return sum(counts.counts), round(counts.sum, 9)


def test_a_requests_times_go_to_the_metrics_that_are_named_after_them():
    metering = Metering()
    metering.accepted(7, SamplingParams(max_tokens=20, n=2))
    finished = Finished(
        reason="stop", num_output_tokens=5, queue_seconds=0.5, prefill_seconds=0.25, decode_seconds=2.0
    )
    metering.finished(finished, 3.0)
    assert seen(metering, "request_prompt_tokens") == (1, 7)
    assert seen(metering, "request_params_max_tokens") == (1, 20)
    assert seen(metering, "request_params_n") == (1, 2)
    assert seen(metering, "e2e_request_latency_seconds") == (1, 3.0)
    assert seen(metering, "request_queue_time_seconds") == (1, 0.5)
    assert seen(metering, "request_prefill_time_seconds") == (1, 0.25)
    assert seen(metering, "request_decode_time_seconds") == (1, 2.0)
    assert seen(metering, "request_inference_time_seconds") == (1, 2.25)
    assert seen(metering, "request_time_per_output_token_seconds") == (1, 0.5)
    assert seen(metering, "request_generation_tokens") == (1, 5)
    assert (metering.ended, metering.prompt_tokens) == ({"stop": 1}, 7)


def test_gaps_are_between_a_sequences_own_tokens():
    metering = Metering()
    metering.stepped(2, 0, 1.0)  # the first of two sequences
    metering.gap(1.5, 1)  # of one that had its last 1.5 s before
    metering.gap(1.0, 4)
    metering.stepped(7, 2, 2.0)
    assert seen(metering, "inter_token_latency_seconds") == (7, 4.5)
    assert metering.output_tokens == 9


def test_errors_count_by_kind_and_not_among_latencies():
    metering = Metering()
    for error in (Overloaded("x"), Overloaded("x"), PeerGone("x"), StartupError("x")):
        metering.failed(error)
    metering.finished(Finished(reason="error", cause="request"), 1.0)
    metering.finished(Finished(reason="error"), 1.0)
    metering.aborted(2)
    assert metering.errors == {"overloaded": 2, "peer_gone": 1, "failure": 2, "request": 1}
    assert metering.ended == {"error": 2, "abort": 2}
    assert seen(metering, "e2e_request_latency_seconds") == (0, 0)
