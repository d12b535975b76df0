// Recipes by call, and how one is carried out.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "interface.hpp"
#include "values.hpp"

namespace syncopate::torch_ops {

/// A recipe in use.
struct Known {
    explicit Known(Recipe made);
    ~Known();
    Known(const Known&) = delete;
    Known& operator=(const Known&) = delete;

    Recipe recipe;
    std::vector<Tensor> constants;  ///< by place in recipe.constants
    std::atomic<std::uint64_t> used{0};
    std::shared_ptr<std::atomic<std::uint64_t>> calls;  ///< of all recipes of this op and outcome
};

/// The executable's runner, as the extension has given it.
extern std::atomic<RunExecutable> run_executable;

/// Carries out one call of `inputs`, which live meanwhile (null: none was given). nullopt: its executable does not take them.
std::optional<Results> carry_out(Known& known, std::span<const Tensor* const> inputs, std::uint64_t stream,
                                 const std::string& module);

/// The recipe of a call by its key; null: there is none.
std::shared_ptr<Known> find(const std::string& key);
void add(const std::string& key, Recipe recipe);
void drop(std::uint64_t token);
void drop_group(const char* name);
void drop_all();
std::uint64_t last_use(std::uint64_t token);
std::uint64_t tick();
void count(Known& known);
std::vector<Count> counts();
void clear_counts();

}  // namespace syncopate::torch_ops
