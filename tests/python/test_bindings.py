"""What Python is told of the extension's functions names no type of C++: such a one has no conversion, and every call fails."""

import inspect
import re

import pytest

_syncopate = pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")


def signatures():
    open_ = [("_syncopate", _syncopate)]
    seen = set()
    while open_:
        path, owner = open_.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        for name, value in vars(owner).items():
            if inspect.ismodule(value) or inspect.isclass(value):
                if getattr(value, "__module__", value.__name__).startswith("syncopate"):
                    open_.append((f"{path}.{name}", value))
            elif getattr(value, "__doc__", None):
                yield f"{path}.{name}", value.__doc__
            if isinstance(value, property) and value.fget is not None:
                yield f"{path}.{name}", value.fget.__doc__ or ""


def test_each_parameter_of_a_binding_has_a_type_of_python():
    found = dict(signatures())
    assert len(found) > 200
    holes = [path for path, text in found.items() if re.search(r"\bstd::|\bsyncopate::", text)]
    assert not holes


def test_errors_that_python_raises_have_the_exit_codes_of_their_classes():
    from syncopate import InputError, MachineError, SyncopateError, UsageError

    kinds = (SyncopateError, InputError, UsageError, MachineError)
    assert [kind("so").exit_code for kind in kinds] == [1, 1, 2, 3]
