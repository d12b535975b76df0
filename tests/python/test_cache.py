"""Operators that are kept between calls (syncopate.call.cache)."""

from __future__ import annotations

import pytest
from syncopate import _syncopate
from syncopate.call import cache


class Failing:
    """Each call fails as where a rank was late."""

    def __call__(self):
        raise _syncopate.MachineError("rank 1 has not arrived")

    def run(self):
        self()

    def held_bytes(self):
        return 0


@pytest.mark.parametrize("call", [lambda operator: operator, lambda operator: operator.run])
def test_an_operator_that_failed_is_made_anew_whichever_of_its_methods_was_called(call):
    key, operator = (0, "kind", id(call)), Failing()
    cache.entries[key] = cache.Entry(None, operator)
    with pytest.raises(_syncopate.MachineError):
        cache.run(call(operator))
    assert key not in cache.entries
