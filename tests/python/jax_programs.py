"""Programs whose collectives and loops test_jax.py looks for in what JAX prints. As a command: jax_programs.py DEVICES FOLDER
NAME… writes NAME.hlo, NAME.mlir and NAME.debug.mlir, which has locations.

A line that is looked for in the listing ends in a comment, `# gather` or the like.
"""

import os
import sys
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={sys.argv[1]}"
    os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

ROWS, WIDTH, HIDDEN = 128, 64, 256  # of x; of w1


def mesh(*shape: int) -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(shape), ("dp", "tp")[-len(shape) :])


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def sharded(function, over: Mesh, arguments: tuple, result: tuple, *shapes: tuple):
    """`function` on arrays of `shapes` that lie as `arguments` says, compiled for all devices."""
    place = partial(NamedSharding, over)
    places = tuple(place(P(*each)) for each in arguments)
    jitted = jax.jit(function, in_shardings=places, out_shardings=place(P(*result)))
    return jitted, [array(*shape) for shape in shapes]


def on_each(function, arguments: tuple, result: tuple, *shapes: tuple):
    """`function` as each device runs it on its shards."""
    specs = tuple(P(*each) for each in arguments)
    mapped = jax.shard_map(
        function, mesh=mesh(jax.device_count()), in_specs=specs, out_specs=P(*result), check_vma=False
    )
    return jax.jit(mapped), [array(*shape) for shape in shapes]


# --- What the partitioner of XLA makes of shardings.
def mlp(x, w1, w2):
    hidden = jax.nn.relu(x @ w1)  # into
    return hidden @ w2  # out of


MLP_SHAPES = (ROWS, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH)


def mlp_tensor_parallel():
    return sharded(mlp, mesh(jax.device_count()), ((), (None, "tp"), ("tp",)), (), *MLP_SHAPES)


def mlp_sequence_parallel():
    return sharded(mlp, mesh(jax.device_count()), (("tp",), (None, "tp"), ("tp",)), ("tp",), *MLP_SHAPES)


def mlp_weights_gathered():
    return sharded(mlp, mesh(jax.device_count()), (("tp",), ("tp",), ("tp",)), ("tp",), *MLP_SHAPES)


def attention(x, wq, wk, wv, wo):
    b, s, d = x.shape
    q, k, v = ((x @ w).reshape(b, s, 8, d // 8) for w in (wq, wk, wv))
    p = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 3.0, -1)
    o = jnp.einsum("bhqk,bkhd->bqhd", p, v).reshape(b, s, d)
    return o @ wo  # out of attention


def attention_by_heads():
    split = (None, "tp")
    weights = ((WIDTH, WIDTH),) * 4
    shardings = ((), split, split, split, ("tp",))
    return sharded(attention, mesh(jax.device_count()), shardings, (), (2, 32, WIDTH), *weights)


def training_step():
    """Two-dimensional: batches over dp, weights over tp."""

    def step(w1, w2, x, y):
        loss = lambda w1, w2: jnp.mean((mlp(x, w1, w2) - y) ** 2)  # noqa: E731
        g1, g2 = jax.grad(loss, (0, 1))(w1, w2)
        return w1 - 0.1 * g1, w2 - 0.1 * g2

    over = mesh(2, jax.device_count() // 2)
    place = partial(NamedSharding, over)
    weights = place(P(None, "tp")), place(P("tp", None))
    data = place(P("dp", None))
    jitted = jax.jit(step, in_shardings=(*weights, data, data), out_shardings=weights)
    return jitted, [array(*shape) for shape in (*MLP_SHAPES[1:], (ROWS, WIDTH), (ROWS, WIDTH))]


# --- Collectives by hand.
X, W = (ROWS, WIDTH), (WIDTH, HIDDEN)


def gathered():
    def f(x, w):
        whole = lax.all_gather(x, "tp", tiled=True)  # gather
        return whole @ w  # product

    return on_each(f, (("tp",), (None, "tp")), (None, "tp"), X, W)


def scattered():
    def f(x, w):
        partial_sum = x @ w  # product
        return lax.psum_scatter(partial_sum, "tp", tiled=True)  # scatter

    return on_each(f, ((None, "tp"), ("tp",)), ("tp",), X, W)


def reduced():
    return on_each(lambda x, w: lax.psum(x @ w, "tp"), ((None, "tp"), ("tp",)), (), X, W)


def exchanged():
    def f(x, w):
        return lax.all_to_all(x, "tp", 1, 0, tiled=True) @ w

    return on_each(f, (("tp",), ()), (), X, (WIDTH // jax.device_count(), HIDDEN))


def recomputed():
    """The gather again in the backward pass, behind a barrier."""

    def f(x, w):
        layer = jax.checkpoint(lambda x, w: jnp.tanh(lax.all_gather(x, "tp", tiled=True) @ w))
        return jax.grad(lambda x: jnp.sum(layer(x, w)))(x)

    return on_each(f, (("tp",), (None, "tp")), ("tp",), X, W)


def biased():
    """Beside a product, and drains none."""
    return on_each(lambda x, w: lax.psum(x @ w + 1.0, "tp"), ((None, "tp"), ("tp",)), (), X, W)


def permuted_nowhere():
    return on_each(lambda x: lax.ppermute(x, "tp", []), (("tp",),), ("tp",), X)


# --- Rings by hand: x goes round and is multiplied into its place.
def ring(loop):
    def f(x, w):
        n = jax.device_count()
        out = jnp.zeros((x.shape[0] * n, w.shape[1]), x.dtype)
        return loop(lax.axis_index("tp"), n, x, w, out)

    return on_each(f, (("tp",), (None, "tp")), (None, "tp"), X, W)


def to_next(x, n: int, by: int):
    return lax.ppermute(x, "tp", [(j, (j + by) % n) for j in range(n)])  # passed on


def ring_step(place, by: int = -1):
    """A loop whose k-th step writes to row place(i, k, n, rows)."""

    def loop(i, n, x, w, out, steps=None):
        def step(k, carry):
            out, x = carry
            product = x @ w  # product of the ring
            out = lax.dynamic_update_slice(out, product, (place(i, k, n, x.shape[0]), 0))
            return out, to_next(x, n, by)

        return lax.fori_loop(0, steps or n, step, (out, x))[0]

    return loop


def by_log2(rows: int) -> int:
    return rows.bit_length() - 1


def ring_forward():
    return ring(ring_step(lambda i, k, n, rows: (i + k) % n * rows))


def ring_backward():
    return ring(ring_step(lambda i, k, n, rows: (i - k) % n * rows, by=1))


def ring_masked():
    return ring(ring_step(lambda i, k, n, rows: ((i + k) & (n - 1)) << by_log2(rows)))


def ring_wrapped():
    return ring(ring_step(lambda i, k, n, rows: jnp.where(i + k >= n, i + k - n, i + k) * rows))


def ring_of_a_table():
    return ring(ring_step(lambda i, k, n, rows: (jnp.arange(2 * n) % n * rows)[i + k]))


def ring_unfinished():
    loop = ring_step(lambda i, k, n, rows: (i + k) % n * rows)
    return ring(lambda i, n, x, w, out: loop(i, n, x, w, out, n - 1))


def ring_by_data():
    return ring(lambda i, n, x, w, out: ring_step(lambda *_: jnp.int32(jnp.abs(x[0, 0])))(i, n, x, w, out))


def ring_of_a_scan():
    def loop(i, n, x, w, out):
        def step(carry, k):
            out, x = carry
            out = lax.dynamic_update_slice_in_dim(out, x @ w, (i + k) % n * x.shape[0], 0)
            return (out, to_next(x, n, -1)), None

        return lax.scan(step, (out, x), jnp.arange(n))[0][0]

    return ring(loop)


def ring_that_counts_along():
    """The number of whose shard it is goes round with it."""

    def loop(i, n, x, w, out):
        def step(_, carry):
            out, x, whose = carry
            out = lax.dynamic_update_slice_in_dim(out, x @ w, whose * x.shape[0], 0)
            return out, to_next(x, n, -1), to_next(whose, n, -1)

        return lax.fori_loop(0, n, step, (out, x, i))[0]

    return ring(loop)


def ring_contracted():
    def f(x, w):
        i, n, part = lax.axis_index("tp"), jax.device_count(), x.shape[1]

        def step(k, carry):
            out, x = carry
            rows = lax.dynamic_slice_in_dim(w, (i + k) % n * part, part, 0)
            return out + x @ rows, to_next(x, n, -1)

        return lax.fori_loop(0, n, step, (jnp.zeros((x.shape[0], w.shape[1]), x.dtype), x))[0]

    return on_each(f, ((None, "tp"), (None, "tp")), (None, "tp"), X, W)


def ring_scattered():
    def f(x, w):
        i, n = lax.axis_index("tp"), jax.device_count()
        rows = x.shape[0] // n

        def step(k, total):
            total = to_next(total, n, 1)
            return total + lax.dynamic_slice_in_dim(x, (i - k - 1) % n * rows, rows, 0) @ w

        return lax.fori_loop(0, n, step, jnp.zeros((rows, w.shape[1]), x.dtype))

    return on_each(f, ((None, "tp"), ("tp",)), ("tp",), X, W)


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    for name in sys.argv[3:]:
        function, arguments = globals()[name]()
        lowered = function.lower(*arguments)
        (folder / f"{name}.mlir").write_text(lowered.as_text())
        (folder / f"{name}.debug.mlir").write_text(lowered.as_text(debug_info=True))
        (folder / f"{name}.hlo").write_text(lowered.compile().as_text())
