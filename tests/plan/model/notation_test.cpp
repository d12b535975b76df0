#include "syncopate/plan/model/notation.hpp"

#include <gtest/gtest.h>

namespace syncopate::plan {
namespace {

template <typename T>
std::string error_of(const Result<T>& result) {
    return result ? "no error" : result.error().to_string();
}

TEST(Notation, TakesDtypesByTheNamesThatOthersHaveForThem) {
    const auto expect = [](DType dtype, std::initializer_list<const char*> names) {
        for (const char* name : names) EXPECT_EQ(dtype_from(name), dtype) << name;
        for (const char* name : names) EXPECT_EQ(parse_tensor(std::string("A:8:") + name)->dtype, dtype);
    };
    expect(DType::fp32, {"fp32", "float32", "torch.float32", "tl.float32", "np.float32", "jnp.float32", "f32",
                         "F32", "FP32", "float", "torch.float"});
    expect(DType::bf16,
           {"bf16", "bfloat16", "torch.bfloat16", "BF16", "jax.numpy.bfloat16", "ml_dtypes.bfloat16"});
    expect(DType::fp16, {"half", "torch.half", "F16", "triton.language.float16"});
    expect(DType::fp8e4m3,
           {"fp8e4m3", "float8_e4m3fn", "torch.float8_e4m3fn", "tl.float8e4nv", "fp8e4nv", "F8E4M3FN"});
    expect(DType::fp8e5m2, {"float8_e5m2", "tl.float8e5", "fp8e5", "f8e5m2"});
    expect(DType::int32, {"i32", "s32", "int", "torch.int32"});
    expect(DType::int64, {"i64", "long", "torch.long", "S64"});
    expect(DType::boolean, {"bool", "torch.bool", "i1", "np.bool_", "pred"});
    for (const char* name : {"", "float33", "torch.", "math.float32", "torch.nn.float32", "fp32 ", ".fp32",
                             "float32.torch", "np.float", "numpy.int", "jnp.float", "jax.numpy.int"})
        EXPECT_EQ(dtype_from(name), std::nullopt) << name;
}

TEST(Notation, ATensorIsNameShapeAndDtype) {
    EXPECT_EQ(*parse_tensor("A:8192x4096:bf16"), (Tensor{"A", {8192, 4096}, DType::bf16}));
    EXPECT_EQ(*parse_tensor("v:7:fp32"), (Tensor{"v", {7}, DType::fp32}));
}

TEST(Notation, AWrongTensorSaysWhichPartIsWrong) {
    EXPECT_EQ(error_of(parse_tensor("A:8192x4096")),
              "tensor \"A:8192x4096\" is not NAME:SIZExSIZE:DTYPE, such as A:8192x4096:bf16");
    EXPECT_EQ(error_of(parse_tensor("A:8x:bf16")),
              "tensor \"A:8x:bf16\" has the size \"\"; expected an integer from 1 to 2^62");
    EXPECT_EQ(error_of(parse_tensor("A:8:bf61")),
              "tensor \"A:8:bf61\" has the unknown dtype \"bf61\"; did you mean \"bf16\"?");
    EXPECT_EQ(error_of(parse_tensor("A:8:complex")),
              "tensor \"A:8:complex\" has the unknown dtype \"complex\"; expected one of "
              "bf16, fp16, fp32, fp64, fp8e4m3, fp8e5m2, int8, int16, int32, int64, uint8, "
              "uint16, uint32, uint64, bool, fp8e4m3fnuz, fp8e5m2fnuz");
    EXPECT_EQ(error_of(parse_tensor("A:8:bf6")),
              "tensor \"A:8:bf6\" has the unknown dtype \"bf6\"; did you mean \"bf16\"?");
    EXPECT_EQ(error_of(parse_tensor("A:4000000000x4000000000:bf16")),
              "tensor \"A:4000000000x4000000000:bf16\" is too large: its bytes do not fit 64 bits");
}

TEST(Notation, AMeshIsAListOfAxes) {
    EXPECT_EQ(*parse_mesh("node=2,gpu=4"), (Mesh{{{"node", 2}, {"gpu", 4}}}));
    EXPECT_EQ(error_of(parse_mesh("node=2,gpu")),
              "mesh \"node=2,gpu\" is not AXIS=SIZE,…, such as node=2,gpu=4");
    EXPECT_EQ(error_of(parse_mesh("a=2,a=4")), "mesh \"a=2,a=4\" names the axis a twice");
    EXPECT_EQ(error_of(parse_mesh("a=64,b=65")), "mesh \"a=64,b=65\" has more than 4096 ranks");
}

TEST(Notation, BytesAreShownWithThreeDigits) {
    EXPECT_EQ(human_bytes(0), "0 B");
    EXPECT_EQ(human_bytes(1023), "1023 B");
    EXPECT_EQ(human_bytes(1536), "1.50 KiB");
    EXPECT_EQ(human_bytes(std::int64_t{64} << 20), "64.0 MiB");
    EXPECT_EQ(human_bytes(std::int64_t{300} << 30), "300 GiB");
}

}  // namespace
}  // namespace syncopate::plan
