// What a kernel asks values for: element types, shapes, and what follows from these.
#include "kernel/support.hpp"

namespace syncopate::kernel::triton::test {
namespace {

/// What a constant expression of the kernel is, from 0 to 16, after these lines; -1: it is not known.
std::int64_t known(const std::string& body, const std::string& value) {
    Arguments args =
        arguments("n=7,DTYPE=float16,s=1.5", {"x_ptr=8x16:fp16", "i_ptr=16:int64", "b_ptr=16:bf16",
                                              "y_ptr=16:fp32", "d=8x16:fp8e4m3@4x16", "t_ptr=16:bool"});
    args.grid = {1, 1, 1};
    const Result<Kernel> k = analyse(
        source("x_ptr, i_ptr, b_ptr, y_ptr, t_ptr, d, n, s, DTYPE: tl.constexpr",
               "    at = tl.arange(0, 4)\n    x = tl.load(x_ptr + at)\n" + body + "    K: tl.constexpr = " +
                   value + "\n    tl.store(y_ptr + tl.arange(0, 16), 1.0, mask=tl.arange(0, 16) < K)\n"),
        "kernel.py", "", args);
    EXPECT_TRUE(k.ok()) << (k.ok() ? "" : k.error().to_string());
    if (!k || !k->tiles[0].inexact_writes.empty()) return -1;
    const auto& writes = k->tiles[0].writes;
    return writes.contains("y_ptr") ? writes.at("y_ptr")[0].size() : 0;
}

bool holds(const std::string& body, const std::string& condition) {
    return known(body, "3 if " + condition + " else 5") == 3;
}

TEST(Types, OfWhatIsLoaded) {
    EXPECT_TRUE(holds("", "x.dtype == tl.float16"));
    EXPECT_TRUE(holds("", "x.dtype == DTYPE"));
    EXPECT_TRUE(holds("", "x.dtype != tl.float32"));
    EXPECT_TRUE(holds("", "x.dtype in (tl.bfloat16, tl.float16)"));
    EXPECT_TRUE(holds("", "x.dtype not in (tl.float8e5, tl.float32)"));
    EXPECT_TRUE(holds("    i = tl.load(i_ptr)\n", "i.dtype.is_int64() and i.dtype.primitive_bitwidth == 64"));
    EXPECT_TRUE(holds("    v = d.load([0, 0])\n", "v.dtype.is_fp8() and v.dtype.is_fp8e4nv()"));
    EXPECT_TRUE(holds("    v = d.load([0, 0])\n", "v.dtype == d.dtype and v.shape[0] == 4"));
    EXPECT_TRUE(holds("    t = tl.load(t_ptr + at)\n", "t.dtype.is_int1() and t.dtype.is_bool()"));
}

TEST(Types, OfPointers) {
    EXPECT_TRUE(holds("", "x_ptr.dtype.is_ptr() and not x.dtype.is_ptr()"));
    EXPECT_TRUE(holds("", "x_ptr.dtype.element_ty == tl.float16 and x_ptr.type.element_ty == x.dtype"));
    EXPECT_TRUE(holds("", "x_ptr.dtype == (x_ptr + 4).dtype and x_ptr.dtype != y_ptr.dtype"));
    EXPECT_TRUE(holds("    p = x_ptr + at\n", "p.type.is_block() and p.type.scalar.element_ty.is_fp16()"));
    EXPECT_TRUE(holds("", "isinstance(x_ptr.dtype, tl.pointer_type)"));
    EXPECT_TRUE(
        holds("", "x_ptr.dtype == tl.pointer_type(tl.float16) and y_ptr.dtype != tl.pointer_type(x.dtype)"));
    EXPECT_TRUE(
        holds("    p = x_ptr.to(tl.pointer_type(DTYPE))\n    v = tl.load(p + at)\n", "v.dtype == x.dtype"));
    EXPECT_TRUE(holds("    p = x_ptr.to(x_ptr.dtype)\n    v = tl.load(p + at)\n", "v.dtype == x.dtype"));
}

TEST(Types, OfNumbersAndConditions) {
    EXPECT_TRUE(
        holds("", "at.dtype == tl.int32 and at.dtype.is_int_signed() and not at.dtype.is_floating()"));
    EXPECT_TRUE(holds("", "at.to(tl.uint8).dtype.is_uint8() and tl.program_id(0).dtype == tl.int32"));
    EXPECT_TRUE(holds("", "(at < 2).dtype == tl.int1 and (x > 0).dtype == tl.int1"));
    EXPECT_TRUE(holds("    a = at.to(tl.int64)\n", "(at + a).dtype == a.dtype and a.dtype.itemsize == 8"));
    EXPECT_TRUE(holds("", "tl.full((4,), 0, tl.float32).dtype.is_fp32()"));
    EXPECT_TRUE(holds("    h = 0.5\n", "h.dtype == tl.float32"));
    EXPECT_EQ(known("", "tl.sum(tl.where(at.to(at.dtype) >= 2, at - 2, at).to(at.dtype), 0)"), 2);
}

TEST(Types, OfOperationsOnData) {
    EXPECT_TRUE(
        holds("    b = tl.load(b_ptr + at)\n", "(b * b).dtype == tl.bfloat16 and (b * x).dtype == x.dtype"));
    EXPECT_TRUE(holds("", "(x * 2.0).dtype == tl.float16 and (x + 1).dtype == tl.float16"));
    EXPECT_TRUE(holds("", "(x / 2).dtype == tl.float32 and (-x).dtype == x.dtype"));
    EXPECT_TRUE(
        holds("    y = tl.load(y_ptr + at)\n", "(x + y).dtype == y.dtype and (at + x).dtype == x.dtype"));
    EXPECT_TRUE(
        holds("    i = tl.load(i_ptr + at)\n", "(i / 2).dtype.is_fp32() and (i // 2).dtype.is_int64()"));
    EXPECT_TRUE(holds("", "x.to(tl.float32).dtype.is_fp32() and tl.exp(x).dtype == x.dtype"));
    EXPECT_TRUE(holds("", "tl.where(at < 2, x, 0.0).dtype == x.dtype and tl.maximum(x, 0).dtype == x.dtype"));
    EXPECT_TRUE(holds("", "tl.max(x, 0).dtype.is_fp32() and tl.argmax(x, 0).dtype == tl.int32"));
    EXPECT_TRUE(
        holds("    m = x[:, None] + x[None, :]\n", "tl.dot(m, m).dtype.is_fp32() and m.dtype.is_fp16()"));
    EXPECT_TRUE(holds("    a = tl.zeros((4,), tl.float32)\n    for k in range(3):\n        a += x\n",
                      "a.dtype.is_fp32() and a.shape[0] == 4"));
    EXPECT_TRUE(holds("    z = x\n    if tl.load(i_ptr) > 0:\n        z = x * 2\n", "z.dtype == x.dtype"));
}

TEST(Types, ShapesOfData) {
    EXPECT_EQ(known("", "x.shape[0] + x.numel"), 8);
    EXPECT_EQ(
        known("    m = x[:, None] * tl.load(y_ptr + tl.arange(0, 2))[None, :]\n", "m.shape[0] + m.shape[1]"),
        6);
    EXPECT_EQ(known("    m = x[:, None] + x[None, :]\n", "tl.sum(m, 1).shape[0] + len(tl.sum(m, 1).shape)"),
              5);
    EXPECT_EQ(known("    m = tl.reshape(x, (2, 2))\n", "m.T.shape[0] + tl.trans(m).numel"), 6);
    EXPECT_EQ(known("    m = tl.broadcast_to(x[None, :], (2, 4))\n", "m.shape[0] * m.type.shape[1]"), 8);
    EXPECT_TRUE(holds("", "x.shape == at.shape and x.type != at.type and x.type == (x + 1).type"));
    EXPECT_TRUE(
        holds("    m = x.expand_dims(0)\n", "m.shape[0] == 1 and m.shape[1] == 4 and m.dtype == x.dtype"));
}

TEST(Types, WhatIsNotKnownDecidesNothing) {
    const std::string either = "    z = x\n    if tl.load(i_ptr) > 0:\n        z = tl.load(y_ptr + at)\n";
    EXPECT_EQ(known(either + "    c = tl.where(z.dtype == x.dtype, 3, 5)\n", "c"), -1);
    EXPECT_EQ(known("    g = tl.histogram(at, 4)\n    c = tl.where(g.dtype == at.dtype, 3, 5)\n", "c"), -1);
}

}  // namespace
}  // namespace syncopate::kernel::triton::test
