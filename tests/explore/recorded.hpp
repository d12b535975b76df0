// What has been taken down of ranks' calls so far: agents and steps, with addresses where a model (model.hpp) has words and
// atoms.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "explore/model.hpp"

namespace syncopate::explore {

struct Bytes {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
};

/// By a step, before addresses are numbered.
struct Touched {
    std::vector<Bytes> reads, writes;
};

struct Recorded {
    explicit Recorded(PlayedOp& played) : op(played) {}

    PlayedOp& op;
    Model model;
    std::vector<std::vector<Touched>> touched;          ///< by agent and step
    std::map<std::uint64_t, std::size_t> words;         ///< by address
    std::map<std::size_t, std::uint32_t> done;          ///< by agent: the word that says that it has ended
    std::map<int, std::vector<std::size_t>> agents_of;  ///< by fiber that another one has started
    std::vector<std::pair<std::size_t, std::size_t>> looks;  ///< agent and step, in the order of the record

    [[nodiscard]] std::uint32_t word(std::uint64_t address);
    [[nodiscard]] std::uint32_t new_word(std::string name);
    [[nodiscard]] std::uint32_t done_of(std::size_t agent);
    /// Where rank's control block begins, as words are addressed.
    [[nodiscard]] std::uint64_t block_of(int rank) const;

private:
    [[nodiscard]] std::string name_of(std::uint64_t address) const;
};

/// Tells where a fiber looks twice for a fault in a row: that is one look.
class Looks {
public:
    [[nodiscard]] bool is_same(const Event& event) const {
        const auto last = last_.find(event.fiber);
        return event.kind == Event::Kind::look && last != last_.end() && last->second == event.any;
    }
    void note(const Event& event) {
        if (event.kind == Event::Kind::look)
            last_[event.fiber] = event.any;
        else
            last_.erase(event.fiber);
    }
    void clear() { last_.clear(); }

private:
    std::map<int, bool> last_;  ///< by fiber: of its last step, if that was one
};

/// The model, once words, atoms, what each step finds and whose words are whose have been worked out.
[[nodiscard]] Model model_of(Recorded recorded, std::string name);

}  // namespace syncopate::explore
