func.func @f(%a: tensor<4x2xf32>) -> tensor<4x2xf32> {
  %0 = "stablehlo.all_to_all"(%a) {concat_dimension = 1 : i64, split_count = 2 : i64,
    replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>} : (tensor<4x2xf32>) -> tensor<4x2xf32>
  return %0 : tensor<4x2xf32>
}
