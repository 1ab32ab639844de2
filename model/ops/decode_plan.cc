#include "model/ops/decode_plan.h"

#include <algorithm>

#include "parallel/tensor/send.h"

namespace keel::model {

namespace {

// Numbers that are written one behind another and copied together.
class Numbers {
 public:
  void Add(int64_t value) { values_.push_back(static_cast<int32_t>(value)); }
  int64_t size() const { return static_cast<int64_t>(values_.size()); }
  at::Tensor On(at::Device device) const {
    return parallel::SentTo(device, at::tensor(values_, at::kInt));
  }

 private:
  std::vector<int32_t> values_;
};

bool IsPrompt(const DecodeSequence& s) { return s.past == 0 && s.tokens > 1; }

// f(row, sequence, position) of each token.
template <typename F>
void ForEachToken(const std::vector<DecodeSequence>& sequences, F&& f) {
  int64_t row = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    for (int64_t t = 0; t < sequences[i].tokens; ++t) f(row++, i, sequences[i].past + t);
  }
}

struct Part {
  int64_t begin = 0, size = 0;
  at::Tensor Of(const at::Tensor& all) const { return all.narrow(0, begin, size); }
};

}  // namespace

DecodePlan DecodePlan::Of(const std::vector<DecodeSequence>& sequences, int64_t block_size,
                          at::Device device) {
  DecodePlan plan;
  Numbers numbers;
  const auto part = [&](auto&& write) {
    const int64_t begin = numbers.size();
    write();
    return Part{begin, numbers.size() - begin};
  };

  // 1. The tokens: first all, then those that continue a sequence.
  Part rows[2], of[2], positions[2];
  Queries* queries[2] = {&plan.all, &plan.continued};
  for (int which = 0; which < 2; ++which) {
    const auto write = [&](auto&& number) {
      return part([&] {
        ForEachToken(sequences, [&](int64_t row, size_t sequence, int64_t position) {
          if (which == 0 || !IsPrompt(sequences[sequence]))
            numbers.Add(number(row, static_cast<int64_t>(sequence), position));
        });
      });
    };
    rows[which] = write([](int64_t row, int64_t, int64_t) { return row; });
    of[which] = write([](int64_t, int64_t sequence, int64_t) { return sequence; });
    positions[which] = write([](int64_t, int64_t, int64_t position) { return position; });
    for (const DecodeSequence& s : sequences) {
      if (which == 0 || !IsPrompt(s))
        queries[which]->longest = std::max(queries[which]->longest, s.past + s.tokens);
    }
  }

  // 2. The prompts.
  const Part begun = part([&] {
    ForEachToken(sequences, [&](int64_t row, size_t sequence, int64_t) {
      if (IsPrompt(sequences[sequence])) numbers.Add(row);
    });
  });
  const Part boundaries = part([&] {
    int64_t tokens = 0;
    numbers.Add(tokens);
    for (const DecodeSequence& s : sequences) {
      if (!IsPrompt(s)) continue;
      numbers.Add(tokens += s.tokens);
      plan.begun.longest = std::max(plan.begun.longest, s.tokens);
    }
  });

  // 3. The blocks of each group.
  const size_t groups = sequences.empty() ? 0 : sequences[0].blocks.size();
  std::vector<Part> blocks(groups), slots(groups);
  std::vector<int64_t> width(groups, 0);
  for (size_t g = 0; g < groups; ++g) {
    for (const DecodeSequence& s : sequences)
      width[g] = std::max(width[g], std::ssize(s.blocks[g]));
    blocks[g] = part([&] {
      for (const DecodeSequence& s : sequences) {
        for (const int32_t block : s.blocks[g]) numbers.Add(block);
        for (int64_t i = std::ssize(s.blocks[g]); i < width[g]; ++i) numbers.Add(-1);
      }
    });
    slots[g] = part([&] {
      ForEachToken(sequences, [&](int64_t, size_t sequence, int64_t position) {
        const auto place = static_cast<size_t>(position / block_size);
        numbers.Add(sequences[sequence].blocks[g][place] * block_size + position % block_size);
      });
    });
  }

  const at::Tensor all = numbers.On(device);
  for (int which = 0; which < 2; ++which) {
    queries[which]->rows = rows[which].Of(all);
    queries[which]->sequences = of[which].Of(all);
    queries[which]->positions = positions[which].Of(all);
  }
  if (plan.begun.longest > 0) {
    plan.begun.rows = begun.Of(all).to(at::kLong);
    plan.begun.boundaries = boundaries.Of(all);
  }
  for (size_t g = 0; g < groups; ++g) {
    plan.groups.push_back(
        {blocks[g].Of(all).view({std::ssize(sequences), width[g]}), slots[g].Of(all)});
  }
  return plan;
}

}  // namespace keel::model
