// What the library's own kernels state of themselves: their tiles, and what each reads and writes. Python's
// kernels (python/syncopate/kernels/) take their statements from here; and a program that C++ makes alone,
// with no text of a kernel, has these.
#pragma once

#include <cstdint>

#include "syncopate/kernel/stated/statement.hpp"
#include "syncopate/ops/problem.hpp"

namespace syncopate::ops {

/// Which of the kernels that make a product.
enum class MatmulKernel : std::uint8_t {
    plain,  ///< kernels/matmul.py, matmul: one shape of tiles
    mixed,  ///< kernels/matmul.py, matmul_mixed: columns of wide tiles, then of tiles half as wide
    gluon,  ///< kernels/gluon_matmul.py
};

struct MatmulForm {
    MatmulKernel kernel = MatmulKernel::gluon;
    bool w_transposed = false;  ///< w is [N, K]
    bool gated = false;         ///< of the Gluon kernel: w has twice N columns
    Scales scales = Scales::none;
    bool whole_bias = false;  ///< a bias is [M, N], not [N]
};

/// Its `parameters` are those that it speaks of, no more, and it has no text: who has the kernel itself adds
/// both. The plain kernels need no statement where their text is at hand: the front end finds the same.
[[nodiscard]] kernel::stated::Statement matmul_statement(const MatmulForm& form);

struct AttentionForm {
    bool causal = false;
    bool windowed = false;
    bool documents = false;     ///< elements of bounds_ptr say which blocks of columns a tile sees
    bool one_pass = false;      ///< one of several passes: ranges of all blocks
    bool placed = false;        ///< Q and O are each rank's own affair: l_ptr says what a rank makes
    std::int64_t together = 0;  ///< heads of Q whose K and V come in one part; 0: all
};

/// Of kernels/gluon_attention.py; likewise.
[[nodiscard]] kernel::stated::Statement attention_statement(const AttentionForm& form);

struct AttentionBackwardForm {
    bool causal = false;
    /// Q and what goes with it come, too: elements of bounds_ptr say which blocks of it a tile reads.
    bool exchanges = false;
    bool whole = false;         ///< rows see all that a causal mask leaves: no windows, no documents
    std::int64_t together = 0;  ///< a rank's heads of K that come in one part; 0: all
    /// `exchanges`: in groups of ranks. What a tile reads of Q differs from group to group: all is awaited.
    bool groups = false;
};

/// Of kernels/gluon_attention_backward.py; likewise.
[[nodiscard]] kernel::stated::Statement attention_backward_statement(const AttentionBackwardForm& form);

}  // namespace syncopate::ops
