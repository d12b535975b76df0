#include "explore/implied.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <set>

namespace syncopate::explore {
namespace {

/// What must have happened before what: nodes are steps, by number.
class Order {
public:
    explicit Order(const Model& model)
        : model_(model), after_(model.record.size() + 1), awaited_(after_.size()) {
        std::map<std::uint32_t, Word> words;
        for (const auto& [agent, at] : model.record) {
            const Step& step = model.agents[agent].steps[at];
            if (at > 0) after_[model.agents[agent].steps[at - 1].number].push_back(step.number);
            if (step.kind == Step::Kind::wait) {
                awaited_[step.number] = satisfying(words[step.word], step);
                if (step.left_out) continue;
                for (const std::uint16_t other : awaited_[step.number]) after_[other].push_back(step.number);
                continue;
            }
            if (step.kind == Step::Kind::move || step.left_out) continue;
            write(words, step);
        }
    }

    [[nodiscard]] const std::vector<std::uint16_t>& awaited(std::uint16_t wait) const {
        return awaited_[wait];
    }

    /// The waits on a way from one step to another, which there is.
    [[nodiscard]] std::vector<std::uint16_t> way(std::uint16_t from, std::uint16_t to) const {
        std::vector<std::uint16_t> came(after_.size(), 0);
        std::deque<std::uint16_t> open{from};
        while (!open.empty() && came[to] == 0) {
            const std::uint16_t at = open.front();
            open.pop_front();
            for (const std::uint16_t next : after_[at]) {
                if (came[next] != 0 || next == from) continue;
                came[next] = at;
                open.push_back(next);
            }
        }
        std::vector<std::uint16_t> waits;
        for (std::uint16_t at = to; at != from; at = came[at]) {
            const Step& step = model_.at(model_.record[at - 1]);
            const bool crosses = model_.record[came[at] - 1].first != model_.record[at - 1].first;
            if (step.kind == Step::Kind::wait && step.own && crosses) waits.push_back(at);
        }
        std::ranges::reverse(waits);
        return waits;
    }

    /// By step: the steps before it.
    [[nodiscard]] std::vector<std::vector<bool>> before() const {
        std::vector<std::vector<bool>> all(after_.size(), std::vector<bool>(after_.size(), false));
        for (std::size_t from = 1; from < after_.size(); ++from) {  // the record is an order of them
            for (const std::uint16_t to : after_[from]) {
                all[to][from] = true;
                for (std::size_t i = 1; i < from; ++i) all[to][i] = all[to][i] || all[from][i];
            }
        }
        return all;
    }

private:
    struct Word {
        std::uint32_t value = 0;
        /// Value reached, and the steps that had to happen for it.
        std::vector<std::pair<std::uint32_t, std::vector<std::uint16_t>>> reached;
        std::vector<std::uint16_t> added;  ///< since it was last set
    };

    static std::vector<std::uint16_t> satisfying(const Word& word, const Step& wait) {
        for (const auto& [value, steps] : word.reached) {
            if (wait.any ? value != 0 : static_cast<std::int32_t>(value - wait.value) >= 0) return steps;
        }
        return {};
    }

    static void write(std::map<std::uint32_t, Word>& words, const Step& step) {
        Word& word = words[step.word];
        const auto set = [](Word& of, std::uint32_t value, std::vector<std::uint16_t> by) {
            if (value < of.value || value == 0) of.reached.clear();  // what came before is over
            of.value = value;
            of.reached.emplace_back(value, std::move(by));
        };
        switch (step.kind) {
            case Step::Kind::store: word.added.clear(); return set(word, step.value, {step.number});
            case Step::Kind::add:
                word.added.push_back(step.number);
                return set(word, word.value + step.value, word.added);
            case Step::Kind::count: {
                word.added.push_back(step.number);
                const std::vector<std::uint16_t> all = word.added;
                set(word, word.value + 1, all);
                if (word.value != step.value) return;
                if (step.any) {
                    word = {};
                }
                for (const std::uint32_t post : step.posts) set(words[post], step.epoch, all);
                return;
            }
            default: return;
        }
    }

    const Model& model_;
    std::vector<std::vector<std::uint16_t>> after_;
    std::vector<std::vector<std::uint16_t>> awaited_;  ///< by wait: what it awaits
};

bool meet(const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b) {
    return std::ranges::any_of(a, [&](std::uint16_t atom) { return std::ranges::binary_search(b, atom); });
}
bool conflict(const Step& a, const Step& b) {
    return meet(a.writes, b.reads) || meet(a.writes, b.writes) || meet(a.reads, b.writes);
}

}  // namespace

std::string implied_by(const Model& model, const std::vector<AgentStep>& left_out) {
    const Order order(model);
    const auto before = order.before();
    std::set<std::string> ways;
    for (const auto& [agent, at] : left_out) {
        const std::uint16_t wait = model.agents[agent].steps[at].number;
        for (std::uint16_t x = 1; x < before.size(); ++x) {
            const Step& first = model.at(model.record[x - 1u]);
            const auto leads = [&](std::uint16_t post) { return post == x || before[post][x]; };
            if (first.kind != Step::Kind::move || std::ranges::none_of(order.awaited(wait), leads)) continue;
            for (std::uint16_t y = wait; y < before.size(); ++y) {
                const Step& second = model.at(model.record[y - 1u]);
                if (second.kind != Step::Kind::move || !before[y][wait] || !conflict(first, second)) continue;
                if (!before[y][x]) return {};
                const std::vector<std::uint16_t> waits = order.way(x, y);
                if (waits.empty()) continue;
                const auto& [by, step] = model.record[waits.back() - 1u];
                ways.insert(model.word_names[model.agents[by].steps[step].word]);
            }
        }
    }
    if (ways.empty()) return "the order in which its own rank goes on";
    std::string all;
    for (const std::string& one : ways) all += (all.empty() ? "" : ", ") + one;
    return all;
}

std::string race(const Model& model) {
    const auto before = Order(model).before();
    for (std::size_t i = 0; i < model.record.size(); ++i) {
        const Step& first = model.at(model.record[i]);
        if (first.kind != Step::Kind::move) continue;
        for (std::size_t j = i + 1; j < model.record.size(); ++j) {
            const Step& second = model.at(model.record[j]);
            if (second.kind != Step::Kind::move || before[second.number][first.number]) continue;
            if (conflict(first, second))
                return model.describe(model.record[i].first, model.record[i].second) + " and " +
                       model.describe(model.record[j].first, model.record[j].second);
        }
    }
    return {};
}

}  // namespace syncopate::explore
