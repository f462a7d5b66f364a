import re

from pageant.actors.observer.exposition import HISTOGRAMS, exposition
from pageant.actors.runtime.histogram import Histogram
from pageant.protocol.allocation import PoolStatistics
from pageant.protocol.scheduling import SchedulerStatistics
from pageant.protocol.statistics import ExecutorStatistics, FrontendStatistics, Observation
from pageant.protocol.supervision import ActorEntry, ActorStatistics, Handled, NodeStatistics, Traffic
from pageant.protocol.tiers import TierStatistics


def everything() -> Observation:
    """One of each thing that can be observed."""
    histograms = {name: Histogram((1.0,)).statistics() for name in HISTOGRAMS}
    steps = {"iteration_tokens_total", "step_seconds"}
    handled = ActorStatistics(
        incarnation=3,
        mailbox_depth=4,
        mailbox_depth_max=9,
        handled=7,
        seconds=0.5,
        stale=1,
        tasks=2,
        kinds={"Submit": Handled(7, 0.5)},
    )
    tier = TierStatistics(
        name="host",
        num_blocks=8,
        blocks_used=3,
        blocks_saved=5,
        blocks_restored=2,
        blocks_lost=1,
        tokens_hit=32,
    )
    pool = PoolStatistics(
        num_blocks=100,
        blocks_free=75,
        blocks_cached=50,
        blocks_held=25,
        tokens_queried=1000,
        tokens_hit=400,
        evictions=6,
        tiers=(tier,),
    )
    counters = {
        "preemptions": 2,
        "steps": 11,
        "verifications": 3,
        "drafts_proposed": 12,
        "drafts_accepted": 7,
    }
    return Observation(
        model="demo",
        at=10.0,
        actors=(ActorEntry(name="scheduler", node="front", incarnation=3, up=True, restarts=2),),
        nodes={
            "front": NodeStatistics(
                node="front",
                pid=1,
                delivered=5,
                sent=4,
                received=3,
                refused=2,
                dead_letters={"actor down": 1},
                actors={"scheduler": handled},
                cpu_seconds=1.5,
                resident_bytes=2**20,
                traffic=(
                    Traffic(
                        actor="scheduler",
                        kind="StepPlan",
                        sent=2,
                        sent_bytes=200,
                        received=1,
                        received_bytes=64,
                    ),
                ),
            )
        },
        frontends={
            "http": FrontendStatistics(
                num_open=1,
                ended={"stop": 3},
                errors={"deadline": 1},
                prompt_tokens=20,
                output_tokens=30,
                histograms={name: counts for name, counts in histograms.items() if name not in steps},
                fields_without_effect={"x": 1},
                http_errors={"400": 2},
            )
        },
        schedulers={
            "scheduler": SchedulerStatistics(
                num_waiting=2,
                num_running=3,
                counters=counters | {"drafts_accepted_at_0": 4, "drafts_accepted_at_1": 3},
            )
        },
        pools={"blocks": pool},
        executors={
            "executor/0": ExecutorStatistics(
                device="cpu",
                dtype="bfloat16",
                num_blocks=100,
                block_size=16,
                memory_bytes={"weights": 7},
                busy_seconds=2.5,
                steps=11,
                rows=30,
                tokens=50,
                histograms={name: histograms[name] for name in steps},
            )
        },
    )


def samples(page):
    """Values by name and labels."""
    return dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))


def test_the_names_are_those_that_are_known_from_elsewhere():
    names = set(re.findall(r"^# TYPE pageant:(\S+)", exposition(everything()), re.M))
    assert names >= {
        *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total"),
        *("prefix_cache_queries_total", "prefix_cache_hits_total", "prompt_tokens_total"),
        *("generation_tokens_total", "request_success_total", "cache_config_info", "iteration_tokens_total"),
        *("request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens"),
        *("request_params_n", "request_params_max_tokens", "time_to_first_token_seconds"),
        *("inter_token_latency_seconds", "request_time_per_output_token_seconds"),
        *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds"),
        *("request_decode_time_seconds", "request_inference_time_seconds"),
        *("spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total"),
        *("spec_decode_num_accepted_tokens_total", "spec_decode_num_accepted_tokens_per_pos_total"),
    }


def test_what_is_counted_is_shown_under_its_labels():
    found = samples(exposition(everything()))
    assert found['pageant:kv_cache_usage_perc{model_name="demo",engine="0"}'] == "0.25"
    accepted = "pageant:spec_decode_num_accepted_tokens_per_pos_total"
    assert found[accepted + '{model_name="demo",engine="0",position="1"}'] == "3"
    assert found['pageant:scheduler_steps_total{model_name="demo",engine="0"}'] == "11"
    assert found['pageant:request_errors_total{model_name="demo",actor="http",kind="deadline"}'] == "1"
    assert found['pageant:http_errors_total{model_name="demo",actor="http",status="400"}'] == "2"
    assert found['pageant:actor_mailbox_depth{actor="scheduler",node="front"}'] == "4"
    assert found['pageant:actor_restarts_total{actor="scheduler",node="front"}'] == "2"
    handled = '{actor="scheduler",node="front",kind="Submit"}'
    assert found[f"pageant:actor_messages_total{handled}"] == "7"
    assert found[f"pageant:actor_handler_seconds_total{handled}"] == "0.5"
    sent = '{actor="scheduler",node="front",kind="StepPlan",direction="sent"}'
    assert found[f"pageant:actor_wire_bytes_total{sent}"] == "200"
    device = '{model_name="demo",actor="executor/0",device="cpu"}'
    assert found[f"pageant:device_busy_seconds_total{device}"] == "2.5"


def test_every_histogram_says_what_it_is_of():
    page = exposition(everything())
    assert all(f"# HELP pageant:{name} {about}" in page for name, about in HISTOGRAMS.items())


def test_replicas_are_told_apart():
    seen = everything()
    pools = {"replica-0/blocks": seen.pools["blocks"], "replica-1/blocks": seen.pools["blocks"]}
    found = samples(
        exposition(Observation(**{**{f: getattr(seen, f) for f in seen.__struct_fields__}, "pools": pools}))
    )
    assert all(f'pageant:kv_cache_usage_perc{{model_name="demo",engine="{n}"}}' in found for n in (0, 1))
