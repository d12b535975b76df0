"""Arguments that are tuples, item by item and back."""

import pytest

torch = pytest.importorskip("torch")
items = pytest.importorskip("syncopate.call.tuples")


def test_items_are_named_by_their_places():
    assert items.flat({"a": 1, "xs": (2, (3, 4))}) == {"a": 1, "xs[0]": 2, "xs[1][0]": 3, "xs[1][1]": 4}


def test_items_in_any_order_are_the_tuple_again():
    arguments = {"a": 1, "xs": tuple(range(12)), "ys": ((1, 2), 3)}
    flat = items.flat(arguments)
    assert items.nested(dict(sorted(flat.items(), reverse=True))) == arguments


def test_a_tuple_without_items_stays():
    assert items.nested(items.flat({"xs": ()})) == {"xs": ()}


def test_a_list_is_refused_as_triton_refuses_it():
    with pytest.raises(TypeError, match="xs is a list, which no Triton kernel takes: give tuple"):
        items.flat({"xs": [torch.zeros(2)]})


def test_a_kernel_is_compiled_with_the_defaults_of_what_is_not_given():
    jit = pytest.importorskip("syncopate.device.jit")
    matmul = pytest.importorskip("syncopate.kernels.matmul")
    import triton

    kernel = triton.runtime.JITFunction(matmul.matmul.fn)
    given = {name: name for name in kernel.arg_names if name not in ("bias_ptr", "ACTIVATION")}
    ordered = dict(zip(kernel.arg_names, jit.in_order(kernel, given), strict=True))
    assert ordered["ACTIVATION"] == "" and ordered["M"] == "M"
    del given["M"]
    with pytest.raises(TypeError, match=r"missing argument\(s\) M of kernel matmul"):
        jit.in_order(kernel, given)


def test_a_constant_left_at_its_default_is_not_packed():
    jit = pytest.importorskip("syncopate.device.jit")
    signature = {"m": "i32", "xs": ("*bf16", "i32"), "ACTIVATION": "constexpr"}
    compiled = jit.Compiled(None, signature, [], constants={(2,): "relu"})
    assert compiled.misfit({"m": 3, "xs": (4096, 4)}) == ""
    compiled.pack({"m": 3, "xs": (4096, 4)})
