"""Errors: by whose fault they are, and there and back over the wire."""

from __future__ import annotations

import pytest

from pageant.protocol import errors
from pageant.protocol.codec import Codec
from pageant.protocol.failure import Failure, error_of, failure_of

CODEC = Codec()


def there_and_back(error: BaseException, actor: str = "scheduler") -> errors.PageantError:
    body, frames = CODEC.encode(failure_of(error, actor))
    failure = CODEC.decode("Failure", body, frames)
    assert isinstance(failure, Failure)
    return error_of(failure)


@pytest.mark.parametrize(
    "kind",
    [
        errors.PeerGone,
        errors.NoSuchActor,
        errors.Overloaded,
        errors.Unsupported,
        errors.BadRequest,
        errors.DeadlineExceeded,
    ],
)
def test_an_error_that_the_asker_can_act_on_keeps_its_class(kind):
    error = there_and_back(kind("why"))
    assert type(error) is kind and str(error) == "why"


def test_a_kind_of_one_of_these_travels_as_that():
    error = there_and_back(errors.GivenUp("why"))
    assert type(error) is errors.PeerGone and str(error) == "why"


def test_anything_else_becomes_a_remote_error_with_class_and_message():
    error = there_and_back(ZeroDivisionError("by zero"))
    assert isinstance(error, errors.RemoteError)
    assert (error.actor, error.cause, error.detail) == ("scheduler", "ZeroDivisionError", "by zero")


def test_the_first_cause_is_kept_through_several_actors():
    error = there_and_back(errors.RemoteError("tokenizer", "KeyError", "'x'"), "frontend")
    assert isinstance(error, errors.RemoteError)
    assert (error.actor, error.cause) == ("tokenizer", "KeyError")


def test_a_message_that_is_no_valid_unicode_still_travels():
    error = there_and_back(OSError("no file \udcff"))
    assert isinstance(error, errors.RemoteError) and error.detail == "no file \\udcff"


def test_every_error_is_in_the_tree_and_in_its_picture():
    declared = [error for error in vars(errors).values() if isinstance(error, type)]
    assert all(issubclass(error, errors.PageantError) for error in declared)
    picture = errors.__doc__ or ""
    below = {error.__name__ for error in declared if not issubclass(error, errors.ProtocolError)}
    assert all(name in picture for name in below)
    for error in (errors.UnknownKind, errors.MalformedEnvelope, errors.MalformedMessage):
        assert issubclass(error, errors.ProtocolError)
