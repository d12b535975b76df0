"""What attends to a rank's rows alone while a sequence is sharded over host ranks; run by test_context_parallel.py.

    host_local_attention.py RANKS [CHECK…]

Exits 1 with the first thing that is wrong.
"""

import contextlib
import functools
import os
import sys
import types
import warnings
from pathlib import Path
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
from host_script import expect, run_checks  # noqa: E402
from syncopate.torch import context_parallel  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._inductor.decomposition import select_decomp_table  # noqa: E402
from torch._inductor.fx_passes.joint_graph import joint_graph_passes, lazy_init  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.attention import varlen  # noqa: E402
from torch.nn.attention.flex_attention import flex_attention  # noqa: E402

ROWS, D = 16, 16


def drawn(heads: int = 2) -> torch.Tensor:
    return torch.randn(1, heads, ROWS, D, generator=torch.Generator().manual_seed(1)).bfloat16()


def refused(what: str, call, name: str) -> None:
    try:
        call()
    except Exception as error:  # the compiler's own, where it takes no graph breaks
        expect(f"{name} (" in str(error) and "this rank's rows alone" in str(error), f"{what}: {error}")
    else:
        expect(False, f"{what}: attends to the rows of this rank")


@contextlib.contextmanager
def told(text: str):
    try:
        yield
    except ValueError as error:
        expect(text in str(error), str(error))
    else:
        expect(False, f"no error: {text}")


class Holder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = flex_attention
        self.compiled = torch.compile(flex_attention, backend="aot_eager")

    def forward(self, q: torch.Tensor, compiled: bool) -> torch.Tensor:
        return self.compiled(q, q, q) if compiled else self.attend(q, q, q)


def check_flexible(_name: str, _size: int) -> None:
    """flex_attention is refused whoever holds it, also what was compiled before; behind the end it is what it was, with nothing
    compiled a second time."""
    warnings.simplefilter("ignore")
    q, module = drawn(), Holder()
    compile = functools.partial(torch.compile, backend="aot_eager")

    def enclosing(function):
        return lambda one: function(one, one, one)

    ways = {
        "by its name": lambda: flex_attention(q, q, q),
        "by names of arguments": lambda: flex_attention(query=q, key=q, value=q, return_lse=True),
        "compiled": functools.partial(compile(flex_attention), q, q, q),
        "compiled whole": functools.partial(compile(flex_attention, fullgraph=True), q, q, q),
        "a part of it": functools.partial(functools.partial(flex_attention, scale=1.0), q, q, q),
        "a part, compiled": functools.partial(compile(functools.partial(flex_attention, scale=1.0)), q, q, q),
        "of a closure": functools.partial(enclosing(flex_attention), q),
        "of a closure, compiled": functools.partial(compile(enclosing(flex_attention)), q),
        "of a module": lambda: module(q, False),
        "compiled, of a module": lambda: module(q, True),
        "of a compiled module": functools.partial(compile(module), q, False),
        "compiled, of a compiled module": functools.partial(compile(module), q, True),
    }
    right = {name: call() for name, call in ways.items()}
    for _ in range(2):  # a loop of training enters it at each step
        with sy.context_parallel():
            for name, call in ways.items():
                refused(name, call, "flex_attention")
            refused(
                "checkpointed", lambda: torch.utils.checkpoint.checkpoint(ways["compiled"]), "flex_attention"
            )
            with sy.context_parallel():
                refused("nested", ways["compiled"], "flex_attention")
            refused("behind the inner one", ways["compiled"], "flex_attention")
        for name, call in ways.items():
            again, wanted = call(), right[name]
            if isinstance(wanted, tuple):
                again, wanted = again[0], wanted[0]
            expect(torch.equal(again, wanted), f"{name}: other values behind the end")
    rows = torch.zeros(4, 2, D, dtype=torch.bfloat16)
    with sy.context_parallel():
        refused("varlen", lambda: varlen.varlen_attn(rows, rows, rows, None, None, 4, 4), "varlen_attn")


def check_steps(_name: str, _size: int) -> None:
    """Callers that are compiled, in a loop of training that enters it at each step: each code is compiled once, and runs compiled."""
    warnings.simplefilter("ignore")
    compiled, ran, q = [], [], drawn()

    def counting(graph, _inputs):
        compiled.append(graph)

        def run(*given):
            ran.append(1)
            return graph(*given)

        return run

    def caller(q: torch.Tensor) -> torch.Tensor:
        try:
            return flex_attention(q * 2, q, q)
        except ValueError:
            return q * 3

    call = torch.compile(caller, backend=counting)
    right, after = caller(q), []
    for _ in range(10):
        with sy.context_parallel():
            expect(torch.equal(call(q), q * 3), "refused")
        ran.clear()
        torch.testing.assert_close(call(q), right, rtol=2e-2, atol=2e-2)
        expect(bool(ran), "not what was compiled")
        after.append(len(compiled))
    expect(after[0] == after[-1], f"compiled, by step: {after}")


def check_named(_name: str, _size: int) -> None:
    """Functions of libraries, and what models of transformers call eager, also one that encloses something."""
    warnings.simplefilter("ignore")
    scale = 2.0

    def eager_attention_forward(module, query, key, value, attention_mask=None, **options):
        return (query @ key.mT * scale).softmax(-1) @ value, None

    def flash_attn_func(q, k, v, causal=False):
        return q

    eager_of_a_lambda = lambda module, query, *_: query  # noqa: E731
    other = types.ModuleType("modeling_other")
    other.eager_attention_forward = eager_of_a_lambda
    sys.modules[other.__name__] = other
    eager, flash = types.ModuleType("modeling_own"), types.ModuleType("flash_attn.flash_attn_interface")
    eager.eager_attention_forward, flash.flash_attn_func = eager_attention_forward, flash_attn_func
    held = flash_attn_func
    sys.modules[eager.__name__] = eager
    q = drawn()
    right = eager_attention_forward(None, q, q, q)[0]
    with sy.context_parallel():
        refused(
            "eager",
            lambda: eager_attention_forward(None, q, q, q),
            "check_named.<locals>.eager_attention_forward",
        )
        refused("of a lambda", lambda: eager_of_a_lambda(None, q), "check_named.<locals>.<lambda>")
        expect(held(q, q, q) is q, "a module that is not loaded yet")
        sys.modules[flash.__name__] = flash
        with sy.context_parallel():
            refused("flash", lambda: held(q, q, v=q, causal=True), "check_named.<locals>.flash_attn_func")
    expect(
        held(q, q, q) is q and torch.equal(eager_attention_forward(None, q, q, q)[0], right), "behind the end"
    )


def check_begin(_name: str, _size: int) -> None:
    """One that cannot begin leaves nothing replaced, and the next one begins."""
    attend, by_modules, q = (
        functional.scaled_dot_product_attention, functional.multi_head_attention_forward, drawn()
    )  # fmt: skip
    fails = mock.patch.object(context_parallel.Refusal, "begin", side_effect=KeyError("what"))
    calls = sy.report().calls
    for nested in (False, True):
        try:
            with sy.context_parallel() if nested else contextlib.nullcontext(), fails, sy.context_parallel():
                expect(False, "begun")
        except KeyError:
            pass
        expect(functional.scaled_dot_product_attention is attend, "still replaced")
        expect(functional.multi_head_attention_forward is by_modules, "still replaced, of modules")
        expect(torch.backends.mha.get_fastpath_enabled(), "still without the fast path")
        expect(nested or sy.report().calls == calls, "counted")
    with sy.context_parallel():
        functional.scaled_dot_product_attention(q, q, q)


def check_none(_name: str, _size: int) -> None:
    """A context in which no attention was taken says so; the report has how many were."""
    q = drawn()
    written_out = lambda: (q @ q.mT).softmax(-1) @ q  # noqa: E731
    attend = functools.partial(functional.scaled_dot_product_attention, q, q, q)
    held = torch.compile(lambda: functional.scaled_dot_product_attention(q, q, q), backend="aot_eager")

    def told(work) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with sy.context_parallel():
                    work()
            except KeyError:
                pass
        return [str(one.message) for one in caught if "context_parallel" in str(one.message)]

    def nested() -> None:
        with sy.context_parallel():
            functional.scaled_dot_product_attention(q, q, q)

    def fails() -> None:
        raise KeyError

    for what, work, warns in (
        ("written out", written_out, 1), ("held by an object", attend, 0), ("nothing", lambda: None, 1),
        ("by its name", lambda: functional.scaled_dot_product_attention(q, q, q), 0), ("nested", nested, 0),
        ("compiled", held, 0), ("compiled, again", held, 0), ("an error", fails, 0),
        ("cleared", lambda: (sy.torch.report.clear(), functional.scaled_dot_product_attention(q, q, q)), 0),
    ):  # fmt: skip
        made = told(work)
        expect(len(made) == warns, f"{what}: {made}")
    from syncopate.torch import report

    report.clear()
    with sy.context_parallel():
        for _ in range(3):
            functional.scaled_dot_product_attention(q, q, q)
    told(written_out)
    calls = sy.report().calls
    expect(calls["scaled_dot_product_attention", "taken by context_parallel"] == 3, f"{calls}")
    expect(calls["context_parallel", "no attention was taken in it"] == 1, f"{calls}")


def check_held(_name: str, _size: int) -> None:
    """What calls torch's function past its names attends to the whole sequence, too, with gradients and without, and behind the end to
    what it did; what would be compiled so is refused, or compiled anew."""
    warnings.simplefilter("ignore")
    own = drawn(), drawn(4)[:, 2:].contiguous(), drawn(6)[:, 4:].contiguous()

    class By(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    held = functools.partial(torch._C._nn.scaled_dot_product_attention, is_causal=True)
    ways = {
        "by its name": By(),
        "held": held,
        "of aten": functools.partial(torch.ops.aten.scaled_dot_product_attention, is_causal=True),
        "traced": torch.jit.trace(By(), own),
        "scripted": torch.jit.script(By()),
        "exported": torch.export.export(By(), own).module(),
        "compiled": torch.compile(lambda q, k, v: held(q, k, v), backend="aot_eager"),
    }
    alone, expected = ways["by its name"](*own), None
    for what, call in ways.items():
        given = [one.clone().requires_grad_() for one in own]
        with sy.context_parallel():
            o = call(*given)
            o.backward(torch.ones_like(o))
            with torch.inference_mode():
                expect(torch.equal(call(*own), o.detach()), f"{what}: other bits in inference mode")
        made = [o.detach(), *(one.grad for one in given)]
        expected = expected or made
        expect(all(map(torch.equal, made, expected)), f"{what}: attends to other rows than by its name")
        expect(torch.equal(call(*own), alone), f"{what}: behind the end it is not what it was")
    expect(not torch.equal(expected[0], alone), "the ranks' rows are one sequence")
    with sy.context_parallel():
        with FakeTensorMode() as mode, told("is traced where an object holds it"):
            held(*map(mode.from_tensor, own))


def check_written_out(_name: str, _size: int) -> None:
    """What a program writes out is left as it is, also where Inductor's patterns make torch's attention of it."""

    def written(q, k, v):
        return (q @ k.transpose(-2, -1) / D**0.5).softmax(-1) @ v

    made = []

    def patterns(graph, _):
        lazy_init()
        joint_graph_passes(graph)
        made.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    own = [drawn().float() for _ in range(3)]
    with sy.context_parallel(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that none is taken
        with torch.no_grad():
            o = torch.compile(
                written,
                backend=aot_autograd(fw_compiler=patterns, decompositions=select_decomp_table()),
                fullgraph=True,
            )(*own)
    expect(any("scaled_dot_product" in name for name in made), f"no pattern was met: {made}")
    torch.testing.assert_close(o, written(*own))


def check_transformers(_name: str, size: int) -> None:
    """A model of transformers: by sdpa it is taken, layer by layer; by eager and by flex_attention it is refused."""
    warnings.simplefilter("ignore")
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, vocab_size=32
    )  # fmt: skip
    ids = torch.zeros(1, ROWS, dtype=torch.int64)
    positions = sy.shard_rows(torch.arange(ROWS * size)[None], dim=1)
    for how, name in (
        ("sdpa", ""), ("eager", "eager_attention_forward"), ("flex_attention", "flex_attention"), ("sdpa", ""),
    ):  # fmt: skip
        torch.manual_seed(0)
        model = LlamaForCausalLM._from_config(config, attn_implementation=how).bfloat16()
        sy.torch.report.clear()

        def call(model=model) -> None:
            model(ids, attention_mask=torch.ones_like(ids), position_ids=positions, use_cache=False)

        with torch.no_grad(), sy.context_parallel():
            if name:
                refused(how, call, name)
            else:
                call()
        taken = sy.report().calls.get(("scaled_dot_product_attention", "taken by context_parallel"), 0)
        expect(taken == (0 if name else 2), f"{how}: {taken} taken")


if __name__ == "__main__":
    run_checks(globals())
