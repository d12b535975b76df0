sdy.mesh @mesh = <["a"=2, "b"=4]>
func.func @f(%arg0: tensor<8xf32>) -> tensor<32xf32> {
  %0 = "stablehlo.all_gather"(%arg0) {
    all_gather_dim = 0 : i64,
    replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = ["b"]>
  } : (tensor<8xf32>) -> tensor<32xf32>
  return %0 : tensor<32xf32>
}
