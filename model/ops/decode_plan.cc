#include "model/ops/decode_plan.h"

#include <algorithm>
#include <span>

namespace keel::model {

namespace {

using Part = DecodeNumbers::Part;

bool IsPrompt(const DecodeSequence& s) { return s.past == 0 && s.tokens > 1; }

class Writer {
 public:
  explicit Writer(std::vector<int32_t>& values) : values_(values) {}

  void Add(int64_t value) { values_.push_back(static_cast<int32_t>(value)); }
  void Add(std::span<const int32_t> some) {
    values_.insert(values_.end(), some.begin(), some.end());
  }
  void Fill(int64_t count) { values_.insert(values_.end(), static_cast<size_t>(count), 0); }
  // What `write` adds.
  template <typename F>
  Part Of(F&& write) {
    const auto begin = std::ssize(values_);
    write();
    return {begin, std::ssize(values_) - begin};
  }

 private:
  std::vector<int32_t>& values_;
};

// f(row, sequence, position) of each token.
template <typename F>
void ForEachToken(const std::vector<DecodeSequence>& sequences, F&& f) {
  int64_t row = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    for (int64_t t = 0; t < sequences[i].tokens; ++t) f(row++, i, sequences[i].past + t);
  }
}

DecodeNumbers::Queries QueriesOf(const std::vector<DecodeSequence>& sequences, bool prompts,
                                 int64_t longest, Writer& numbers) {
  const auto part = [&](auto&& number) {
    return numbers.Of([&] {
      ForEachToken(sequences, [&](int64_t row, size_t sequence, int64_t position) {
        if (prompts || !IsPrompt(sequences[sequence]))
          numbers.Add(number(row, static_cast<int64_t>(sequence), position));
      });
    });
  };
  DecodeNumbers::Queries queries;
  queries.rows = part([](int64_t row, int64_t, int64_t) { return row; });
  queries.sequences = part([](int64_t, int64_t sequence, int64_t) { return sequence; });
  queries.positions = part([](int64_t, int64_t, int64_t position) { return position; });
  queries.longest = longest;
  for (const DecodeSequence& s : sequences) {
    if (prompts || !IsPrompt(s)) queries.longest = std::max(queries.longest, s.past + s.tokens);
  }
  return queries;
}

DecodeNumbers::Prompts PromptsOf(const std::vector<DecodeSequence>& sequences, Writer& numbers) {
  DecodeNumbers::Prompts prompts;
  prompts.rows = numbers.Of([&] {
    ForEachToken(sequences, [&](int64_t row, size_t sequence, int64_t) {
      if (IsPrompt(sequences[sequence])) numbers.Add(row);
    });
  });
  prompts.boundaries = numbers.Of([&] {
    int64_t tokens = 0;
    numbers.Add(tokens);
    for (const DecodeSequence& s : sequences) {
      if (!IsPrompt(s)) continue;
      numbers.Add(tokens += s.tokens);
      prompts.longest = std::max(prompts.longest, s.tokens);
    }
  });
  return prompts;
}

DecodeNumbers::Group GroupOf(const std::vector<DecodeSequence>& sequences, size_t index,
                             int64_t block_size, int64_t longest, Writer& numbers) {
  DecodeNumbers::Group group;
  for (const DecodeSequence& s : sequences) longest = std::max(longest, s.past + s.tokens);
  group.width = (longest + block_size - 1) / block_size;
  group.blocks = numbers.Of([&] {
    for (const DecodeSequence& s : sequences) {
      const int64_t count = std::min(group.width, std::ssize(s.blocks[index]));
      numbers.Add(std::span(s.blocks[index]).first(static_cast<size_t>(count)));
      numbers.Fill(group.width - count);
    }
  });
  group.slots = numbers.Of([&] {
    ForEachToken(sequences, [&](int64_t, size_t sequence, int64_t position) {
      const std::vector<int32_t>& blocks = sequences[sequence].blocks[index];
      const auto place = static_cast<size_t>(position / block_size);
      numbers.Add(blocks.empty() ? -1 : blocks[place] * block_size + position % block_size);
    });
  });
  return group;
}

}  // namespace

DecodeNumbers DecodeNumbers::Of(const DecodeBatch& batch, const std::vector<int32_t>& main,
                                const std::vector<int32_t>& local) {
  DecodeNumbers numbers;
  Writer writer(numbers.values);
  numbers.ids = writer.Of([&] { writer.Add(batch.ids); });
  numbers.main_rows = writer.Of([&] { writer.Add(main); });
  numbers.local_rows = writer.Of([&] { writer.Add(local); });
  return numbers;
}

void DecodeNumbers::AddPlaces(const std::vector<DecodeSequence>& of, int64_t block_size,
                              int64_t longest) {
  Writer writer(values);
  sequences = std::ssize(of);
  all = QueriesOf(of, true, longest, writer);
  continued = QueriesOf(of, false, longest, writer);
  begun = PromptsOf(of, writer);
  for (size_t g = 0; g < (of.empty() ? 0 : of[0].blocks.size()); ++g)
    groups.push_back(GroupOf(of, g, block_size, longest, writer));
}

DecodePlan DecodePlan::On(const DecodeNumbers& numbers, const at::Tensor& values) {
  const auto queries = [&](const DecodeNumbers::Queries& q) {
    return Queries{PartOf(values, q.rows), PartOf(values, q.sequences), PartOf(values, q.positions),
                   q.longest};
  };
  DecodePlan plan;
  plan.all = queries(numbers.all);
  plan.continued = queries(numbers.continued);
  if (numbers.begun.longest > 0) {
    plan.begun = {PartOf(values, numbers.begun.rows).to(at::kLong),
                  PartOf(values, numbers.begun.boundaries), numbers.begun.longest};
  }
  for (const DecodeNumbers::Group& group : numbers.groups) {
    plan.groups.push_back({PartOf(values, group.blocks).view({numbers.sequences, group.width}),
                           PartOf(values, group.slots)});
  }
  return plan;
}

}  // namespace keel::model
