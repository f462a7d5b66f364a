"""Names, and who is meant by them."""

import pytest

from pageant.actors.runtime.address import (
    candidates,
    index_of,
    matches,
    model_of,
    replica_of,
    replica_prefix,
    role_of,
)


def test_a_name_has_a_model_a_replica_a_role_and_a_number():
    name = "small/replica-12/executor/3"
    prefix = replica_of(name)
    assert (prefix, role_of(name)) == ("small/replica-12/", "executor")
    assert (model_of(prefix), index_of(prefix)) == ("small/", 12)
    assert replica_prefix("small/", 12) == prefix
    assert (model_of("small/"), index_of("small/"), model_of("replica-0/"), index_of("")) == (
        "small/",
        None,
        "",
        None,
    )


def test_a_name_is_looked_up_outwards():
    assert candidates("frontend", "small/replica-1/") == (
        "small/replica-1/frontend",
        "small/frontend",
        "frontend",
    )
    assert candidates("frontend", "") == ("frontend",)


@pytest.mark.parametrize("address", ["blocks", "executor/0", "executor/*", "scheduler", "grammar", "drafter"])
def test_what_a_replica_owns_is_nobody_elses(address):
    for prefix in ("", "small/", "replica-1/", "small/replica-1/"):
        assert candidates(address, prefix) == (prefix + address,)
        assert not matches(address, "blocks" if prefix else "replica-0/blocks", prefix)


@pytest.mark.parametrize("address", ["replica-0/scheduler", "node/scheduler", "node/replica-0/executor"])
def test_a_full_name_means_the_same_from_everywhere(address):
    assert candidates(address, "replica-1/")[-1] == address


@pytest.mark.parametrize("model", ["", "small/"])
def test_a_watcher_of_all_replicas_hears_of_those_of_one_model(model):
    pattern = f"{model}*/executor"
    assert matches(pattern, f"{model}replica-0/executor/0", "")
    assert matches(pattern, f"{model}replica-31/executor/1", "")
    for other in (
        f"{model}executor/0",
        f"{model}replica-0/scheduler",
        "large/replica-0/executor/0",
        "small/executor",
    ):
        assert not matches(pattern, other, "")
