"""An observation in Prometheus' text format, with vLLM's names where it has the same thing (prefix `pageant:`)."""

from __future__ import annotations

from collections.abc import Mapping

from pageant.actors.observer.page import Page
from pageant.actors.runtime.address import index_of, model_of, replica_of
from pageant.actors.runtime.devices import is_cpu
from pageant.protocol.allocation import PoolStatistics
from pageant.protocol.statistics import FrontendStatistics, HistogramCounts, Observation

# The scheduler's counters that vLLM's users know by another name.
KNOWN = {
    "preemptions": ("num_preemptions_total", "Sequences that gave up their memory to others."),
    "tokens_cached": ("prompt_tokens_cached_total", "Prompt tokens that were not computed."),
    "verifications": ("spec_decode_num_drafts_total", "Rows of steps that had drafts."),
    "drafts_proposed": ("spec_decode_num_draft_tokens_total", "Tokens that were drafted and verified."),
    "drafts_accepted": ("spec_decode_num_accepted_tokens_total", "Of those, that were right."),
}
ACCEPTED_AT = "drafts_accepted_at_"

HISTOGRAMS = {
    "time_to_first_token_seconds": "From a request's arrival to its first token.",
    "inter_token_latency_seconds": "Between a sequence's tokens.",
    "request_time_per_output_token_seconds": "A sequence's decode time by its tokens after the first.",
    "e2e_request_latency_seconds": "From a request's arrival to a sequence's end.",
    "request_queue_time_seconds": "Before a sequence was admitted.",
    "request_prefill_time_seconds": "From its admission to its first token.",
    "request_decode_time_seconds": "From its first token to its last.",
    "request_inference_time_seconds": "From its admission to its last token.",
    "request_prompt_tokens": "Tokens of prompts.",
    "request_generation_tokens": "Tokens of outputs.",
    "request_max_num_generation_tokens": "Tokens of a request's longest output.",
    "request_params_max_tokens": "The max_tokens that requests ask for.",
    "request_params_n": "Sequences that requests ask for.",
    "iteration_tokens_total": "Tokens computed in a step.",
    "step_seconds": "How long a step was on the device.",
}


def exposition(observation: Observation) -> str:
    """The page that a scrape gets."""
    page = Page()
    _requests(page, observation.models, observation)
    _blocks(page, observation.models, observation)
    _devices(page, observation.models, observation)
    _routers(page, observation)
    _stores(page, observation)
    _servers(page, observation)
    _actors(page, observation)
    return page.text()


def _model(models: Mapping[str, str], actor: str) -> dict[str, str]:
    """The label of what an actor says of its model."""
    return {"model_name": models.get(model_of(replica_of(actor)), "")}


def _engine(models: Mapping[str, str], actor: str) -> dict[str, str]:
    """The labels of what an actor says of its replica."""
    return {**_model(models, actor), "engine": str(index_of(replica_of(actor)) or 0)}


def _requests(page: Page, models: Mapping[str, str], observation: Observation) -> None:
    for name, scheduler in observation.schedulers.items():
        labels = _engine(models, name)
        page.gauge("num_requests_running", "Requests that hold memory.", scheduler.num_running, labels)
        page.gauge("num_requests_waiting", "Requests that wait for memory.", scheduler.num_waiting, labels)
        for counter, count in sorted(scheduler.counters.items()):
            if counter.startswith(ACCEPTED_AT):
                place = {**labels, "position": counter.removeprefix(ACCEPTED_AT)}
                about = "Drafts that were right, by their place among a row's."
                page.counter("spec_decode_num_accepted_tokens_per_pos_total", about, count, place)
                continue
            unknown = (f"scheduler_{counter}_total", f"The scheduler's count of {counter}.")
            page.counter(*KNOWN.get(counter, unknown), count, labels)
    for name, frontend in observation.frontends.items():
        labels = {**_model(models, name), "actor": name.removeprefix(replica_of(name))}
        _frontend(page, labels, frontend)


def _routers(page: Page, observation: Observation) -> None:
    for router in observation.routers.values():
        page.counter(
            "route_decisions_total", "Requests that the router sent somewhere.", router.decisions, {}
        )
        about = "Prompt tokens that replicas were expected to have cached."
        page.counter("route_hit_tokens_total", about, router.hit_tokens, {})
        page.counter("route_tokens_total", "Prompt tokens of the requests that it sent.", router.tokens, {})
        about = "Decisions that the routing policy failed to make."
        page.counter("route_policy_failures_total", about, router.policy_failures, {})
        for name, replica in router.replicas.items():
            labels = _engine(observation.models, f"{name}scheduler")
            about = "Tokens that a replica is to compute, with what is on its way."
            page.gauge("route_waiting_tokens", about, replica.waiting_tokens, labels)
            about = "Seconds until those are computed."
            seconds = replica.waiting_tokens * replica.seconds_per_token
            page.gauge("route_waiting_seconds", about, seconds, labels)


STORE_COUNTERS = {
    "saved": ("store_saved_total", "Blocks that executors saved in a store."),
    "restored": ("store_restored_total", "Blocks of a store that were found whole."),
    "spoilt": ("store_spoilt_total", "Blocks of a store that were not found whole."),
    "evictions": ("store_evictions_total", "Blocks that gave way to others."),
    "fetched": ("store_fetched_total", "Blocks that came from stores of other hosts."),
    "fetched_bytes": ("store_fetched_bytes_total", "Bytes of those."),
    "fetch_seconds": ("store_fetch_seconds_total", "Time that fetches took, failed ones included."),
    "unfetched": ("store_unfetched_total", "Blocks that were to be fetched, and did not come whole in time."),
    "served": ("store_served_total", "Blocks that stores of other hosts fetched."),
    "spilled": ("store_spilled_total", "Blocks that were written to the disk."),
    "loaded": ("store_loaded_total", "Blocks that came back from there."),
    "unloaded": ("store_unloaded_total", "Blocks that were to come back from there, and were not whole."),
    "disk_evictions": ("store_disk_evictions_total", "Blocks that gave way to others there."),
}


def _stores(page: Page, observation: Observation) -> None:
    for name, store in observation.stores.items():
        labels = {"store": name}
        page.gauge("store_bytes", "Memory of a KV store.", store.num_bytes, labels)
        page.gauge("store_bytes_used", "Bytes of it that hold blocks.", store.bytes_used, labels)
        page.gauge("store_disk_bytes", "Room of a store on the disk.", store.disk_bytes, labels)
        page.gauge("store_disk_blocks", "Blocks that are there.", store.disk_blocks, labels)
        for state in ("blocks", "reserved", "pinned"):
            about = "Blocks of a store that can be restored, are being written, or are being read."
            page.gauge("store_blocks", about, getattr(store, state), {**labels, "state": state})
        for field, (counter, meaning) in STORE_COUNTERS.items():
            page.counter(counter, meaning, getattr(store, field), labels)


def _frontend(page: Page, labels: Mapping[str, str], frontend: FrontendStatistics) -> None:
    page.gauge("num_requests_open", "Requests that have not ended.", frontend.num_open, labels)
    page.counter("prompt_tokens_total", "Prompt tokens of requests.", frontend.prompt_tokens, labels)
    page.counter("generation_tokens_total", "Output tokens.", frontend.output_tokens, labels)
    for name, about, label, counts in (
        ("request_success_total", "Sequences by how they ended.", "finished_reason", frontend.ended),
        ("request_errors_total", "Requests that failed, by what went wrong.", "kind", frontend.errors),
        (
            "request_fields_without_effect_total",
            "Fields of requests that have no effect here.",
            "field",
            frontend.fields_without_effect,
        ),
        ("http_errors_total", "HTTP requests answered with an error.", "status", frontend.http_errors),
    ):
        page.counters(name, about, label, counts, labels)
    _histograms(page, labels, frontend.histograms)


def _histograms(page: Page, labels: Mapping[str, str], histograms: Mapping[str, HistogramCounts]) -> None:
    for name, counts in histograms.items():
        page.histogram(name, HISTOGRAMS.get(name, name), counts, labels)


def _blocks(page: Page, models: Mapping[str, str], observation: Observation) -> None:
    for name, pool in observation.pools.items():
        _pool(page, _engine(models, name), pool)


def _pool(page: Page, labels: Mapping[str, str], pool: PoolStatistics) -> None:
    used = pool.blocks_held / pool.num_blocks if pool.num_blocks else 0.0
    page.gauge("kv_cache_usage_perc", "Share of the KV blocks that are held.", used, labels)
    for state, blocks in (
        ("held", pool.blocks_held),
        ("cached", pool.blocks_cached),
        ("empty", pool.blocks_free - pool.blocks_cached),
    ):
        page.gauge("kv_blocks", "KV blocks by state.", blocks, {**labels, "state": state})
    page.counter("prefix_cache_queries_total", "Prompt tokens looked up.", pool.tokens_queried, labels)
    page.counter("prefix_cache_hits_total", "Of those, found in the cache.", pool.tokens_hit, labels)
    page.counter(
        "prefix_cache_copied_total", "Of those, in blocks shared in part.", pool.tokens_copied, labels
    )
    page.counter("kv_blocks_copied_total", "Blocks that were shared in part.", pool.blocks_copied, labels)
    about = "Blocks that running sequences gave back, which no window reached any more."
    page.counter("kv_blocks_given_back_total", about, pool.blocks_given_back, labels)
    page.counter("kv_block_evictions_total", "Cached blocks given to others.", pool.evictions, labels)
    page.gauge("kv_slots_wasted", "Slots of held blocks that hold no token.", pool.slots_wasted, labels)
    for tier in pool.tiers:
        each = {**labels, "tier": tier.name}
        page.gauge("kv_tier_blocks", "Blocks of a tier below the device.", tier.num_blocks, each)
        page.gauge("kv_tier_blocks_used", "Of those, that hold something.", tier.blocks_used, each)
        page.counter("kv_tier_hits_total", "Prompt tokens found there.", tier.tokens_hit, each)
        page.counter("kv_tier_saved_total", "Blocks that came from above.", tier.blocks_saved, each)
        page.counter("kv_tier_restored_total", "Blocks that went back.", tier.blocks_restored, each)
        page.counter("kv_tier_lost_total", "Blocks given up, and kept nowhere.", tier.blocks_lost, each)


def _devices(page: Page, models: Mapping[str, str], observation: Observation) -> None:
    for name, executor in observation.executors.items():
        labels = {**_model(models, name), "actor": name, "device": executor.device}
        page.counter(
            "device_busy_seconds_total", "Time with a step on the device.", executor.busy_seconds, labels
        )
        page.counter("device_steps_total", "Steps computed.", executor.steps, labels)
        page.counter("device_rows_total", "Sequences in them.", executor.rows, labels)
        page.counter("device_tokens_total", "Tokens in them.", executor.tokens, labels)
        for part, size in sorted(executor.memory_bytes.items()):
            page.gauge(
                "device_memory_bytes",
                "Memory by what it is for, free and total.",
                size,
                {**labels, "part": part},
            )
        if not is_cpu(executor.device):
            about = "Variants of kernels that were compiled, or read from the disk's cache."
            page.counter("device_kernels_loaded_total", about, executor.kernels_loaded, labels)
            about = "CUDA graphs that were captured."
            page.counter("device_graphs_captured_total", about, executor.graphs_captured, labels)
        _histograms(page, labels, executor.histograms)
        # `num_gpu_blocks` of `block_size` tokens are what fits; there are as many for each group of layers.
        groups = len(executor.windows)
        shape = {"block_size": str(executor.block_size), "num_gpu_blocks": str(executor.num_blocks // groups)}
        shape["layer_groups"] = str(groups)
        page.gauge("cache_config_info", "The KV cache.", 1, {**labels, **shape, "dtype": executor.dtype})


def _servers(page: Page, observation: Observation) -> None:
    for name, server in observation.https.items():
        about = "Tokens that left in streams."
        page.counter("http_streamed_tokens_total", about, server.streamed_tokens, {"actor": name})


def _actors(page: Page, observation: Observation) -> None:
    page.counters(
        "trace_spans_total", "Spans of traces, by what became of them.", "state", observation.spans, {}
    )
    for entry in observation.actors:
        labels = {"actor": entry.name, "node": entry.node}
        page.gauge("actor_up", "Whether an actor is up.", entry.up, labels)
        page.counter("actor_restarts_total", "Times that it was started again.", entry.restarts, labels)
    for node, statistics in observation.nodes.items():
        for name, actor in statistics.actors.items():
            labels = {"actor": name, "node": node}
            page.gauge("actor_mailbox_depth", "Messages that wait for it.", actor.mailbox_depth, labels)
            page.gauge("actor_mailbox_depth_max", "The most there were.", actor.mailbox_depth_max, labels)
            page.gauge("actor_tasks", "Its background tasks.", actor.tasks, labels)
            page.counter("actor_stale_total", "Messages of former lives, dropped.", actor.stale, labels)
            for kind, handled in sorted(actor.kinds.items()):
                each = {**labels, "kind": kind}
                page.counter("actor_messages_total", "Messages that it handled.", handled.count, each)
                page.counter("actor_handler_seconds_total", "Time in its handlers.", handled.seconds, each)
        for flow in statistics.traffic:
            for direction, count, size in (
                ("sent", flow.sent, flow.sent_bytes),
                ("received", flow.received, flow.received_bytes),
            ):
                each = {"actor": flow.actor, "node": node, "kind": flow.kind, "direction": direction}
                if count:
                    page.counter("actor_wire_messages_total", "Messages between nodes.", count, each)
                    page.counter("actor_wire_bytes_total", "Bytes of those, all frames.", size, each)
        here = {"node": node}
        page.counter("node_cpu_seconds_total", "CPU time of a node's process.", statistics.cpu_seconds, here)
        page.gauge("node_resident_memory_bytes", "Memory of its process.", statistics.resident_bytes, here)
        page.counter("node_delivered_total", "Messages within a node.", statistics.delivered, here)
        page.counters(
            "node_dead_letters_total", "Messages that nobody took.", "why", statistics.dead_letters, here
        )
        page.counter("node_refused_total", "Envelopes that could not be read.", statistics.refused, here)
