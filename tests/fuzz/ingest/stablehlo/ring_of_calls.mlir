#loc1 = loc("/home/me/model.py":31:4 to :9)
module attributes {mhlo.num_partitions = 2 : i32} {
func.func public @main(%a: tensor<2x4xf32>, %w: tensor<4x2xf32>) -> tensor<4x2xf32> {
  %me = stablehlo.partition_id : tensor<ui32>
  %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %z = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x2xf32>
  %i0 = stablehlo.constant dense<0> : tensor<ui32>
  %p:2 = stablehlo.optimization_barrier %a, %w : tensor<2x4xf32>, tensor<4x2xf32>
  %r:3 = stablehlo.while(%i = %i0, %out = %z, %x = %p#0) : tensor<ui32>, tensor<4x2xf32>, tensor<2x4xf32>
  cond {
    %n = stablehlo.constant dense<2> : tensor<ui32>
    %go = stablehlo.compare LT, %i, %n, UNSIGNED : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %b:3 = func.call @step(%p#1, %me, %i, %out, %x) : (tensor<4x2xf32>, tensor<ui32>, tensor<ui32>, tensor<4x2xf32>, tensor<2x4xf32>) -> (tensor<ui32>, tensor<4x2xf32>, tensor<2x4xf32>)
    stablehlo.return %b#0, %b#1, %b#2 : tensor<ui32>, tensor<4x2xf32>, tensor<2x4xf32>
  }
  %c = stablehlo.composite "same" %r#1 {decomposition = @same} : (tensor<4x2xf32>) -> tensor<4x2xf32>
  return %c : tensor<4x2xf32>
}
func.func private @same(%x: tensor<4x2xf32>) -> tensor<4x2xf32> {
  return %x : tensor<4x2xf32>
}
func.func private @step(%v: tensor<4x2xf32>, %me: tensor<ui32>, %i: tensor<ui32>, %out: tensor<4x2xf32>, %x: tensor<2x4xf32>) -> (tensor<ui32>, tensor<4x2xf32>, tensor<2x4xf32>) {
  %one = stablehlo.constant dense<1> : tensor<ui32>
  %j = stablehlo.add %i, %one : tensor<ui32>
  %d = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] : (tensor<2x4xf32>, tensor<4x2xf32>) -> tensor<2x2xf32> loc(#loc1)
  %0 = stablehlo.add %me, %i : tensor<ui32>
  %1 = stablehlo.and %0, %one : tensor<ui32>
  %f = stablehlo.shift_left %1, %one : tensor<ui32>
  %zero = stablehlo.constant dense<0> : tensor<ui32>
  %next = stablehlo.dynamic_update_slice %out, %d, %f, %zero : (tensor<4x2xf32>, tensor<2x2xf32>, tensor<ui32>, tensor<ui32>) -> tensor<4x2xf32>
  %y = "stablehlo.collective_permute"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return %j, %next, %y : tensor<ui32>, tensor<4x2xf32>, tensor<2x4xf32>
}
func.func private @types(%a: tensor<2xcomplex<f32>>, %b: tensor<4x!quant.uniform<i8<-7:7>:f32, 0.5>>, %c: tuple<tensor<i1>, !stablehlo.token>) {
  return
}
}
