#include "trainer/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "trainer/data/rows/row_notes.h"
#include "trainer/data/split.h"

namespace keel::trainer {

namespace {

// Stream of the draws that decide which samples are set apart.
constexpr uint64_t kSplitStream = 0x73706c6974;

struct Numbered {
  int64_t id;
};

// As the digest of samples in memory has always had it: where each lies and what it teaches.
struct Entry {
  int64_t begin;
  int64_t length;   // tokens
  int64_t targets;  // learnt ones but the first
  int64_t id;
};

template <typename T>
void Update(Hasher128& hasher, const T& value) {
  hasher.Update(std::as_bytes(std::span(&value, 1)));
}

// Why rows are left out that are not too long.
std::string NothingLearnt(int64_t rows, const std::string& first) {
  return fmt::format(
      "in {} of the rows left out nothing is learnt{}: no message has the role "
      "assistant, labels are all -100, or the answer is empty or was cut off",
      rows, first.empty() ? "" : fmt::format(" (the first is {})", first));
}

}  // namespace

Result<Dataset> Dataset::Load(const std::vector<std::string>& files, const DatasetOptions& options,
                              const TextRules& rules) {
  Dataset data;
  KEEL_RETURN_IF_ERROR(data.Add(files, options, rules));
  data.Seal();
  return data;
}

Result<Dataset> Dataset::LoadSources(const std::vector<DataSource>& sources,
                                     const DatasetOptions& options, const TextRules& rules) {
  Dataset data;
  for (const DataSource& source : sources) {
    KEEL_RETURN_IF_ERROR(data.Add({source.path}, options, rules));
    data.mixture_.push_back({data.sources_.back()->cut.size(), source.weight});
  }
  data.Seal();
  return data;
}

Status Dataset::Add(const std::vector<std::string>& files, const DatasetOptions& options,
                    const TextRules& rules) {
  const Packing packing = options.packing.value_or(options.sft ? Packing::kNone : Packing::kStream);
  TokenInputOptions input;
  input.keys = options.keys;
  input.vocab_size = options.vocab_size;
  input.learns_all = !options.sft;
  // Packings that cut rows leave none too long.
  input.max_length = options.sft && KeepsWhole(packing) ? options.max_length : 0;
  input.truncation = options.truncation;
  input.cache = options.cache;
  KEEL_ASSIGN_OR_RETURN(TokenInput tokens, OpenTokens(files, input, rules));

  CutOptions cut;
  cut.packing = packing;
  cut.learns_all = !options.sft;
  cut.max_length = options.max_length;
  cut.truncation = options.truncation;
  cut.vocab_size = options.vocab_size;
  cut.name = fmt::format("{}", fmt::join(files, ", "));
  auto source = std::make_shared<Source>();
  KEEL_ASSIGN_OR_RETURN(source->cut, SampleCut::Make(tokens.store, cut));
  source->memory = tokens.memory;
  source->path = cut.name;
  const int64_t skipped = tokens.skipped_rows + source->cut.skipped();
  const int64_t unlearnt = tokens.unlearnt_rows + source->cut.unlearnt();
  skipped_rows_ += skipped;
  warnings_.insert(warnings_.end(), tokens.warnings.begin(), tokens.warnings.end());
  if (source->cut.size() == 0) {
    return Status(
        StatusCode::kInvalidData,
        fmt::format("no sample to train on in {} ({} rows left out{})", cut.name, skipped,
                    unlearnt > 0 ? "; " + NothingLearnt(unlearnt, tokens.unlearnt_where) : ""));
  }
  if (const int64_t cut_rows = tokens.cut_rows + source->cut.cut(); cut_rows > 0)
    warnings_.push_back(cut.name + ": " + CutWarning(cut_rows, "data.max_length"));
  if (unlearnt > 0) {
    warnings_.push_back(
        fmt::format("{}: {}", cut.name, NothingLearnt(unlearnt, tokens.unlearnt_where)));
  }
  first_.push_back(first_.back() + source->cut.size());
  sources_.push_back(std::move(source));
  return Status::Ok();
}

// Of rows in memory, one piece a sample, all that training sees is hashed. Elsewhere the store's
// own digest stands for the tokens, so that none of them need be read for it.
void Dataset::Seal() {
  Hasher128 hasher;
  for (const auto& source : sources_) {
    const CutOptions& options = source->cut.options();
    const bool plain = options.packing == Packing::kNone || options.packing == Packing::kStream;
    if (source->memory != nullptr && plain && mixture_.empty()) {
      hasher.Update(std::as_bytes(source->memory->ids()));
      hasher.Update(std::as_bytes(source->memory->learn()));
      for (int64_t i = 0; i < size(); ++i) {
        const SampleCut::Piece piece = source->cut.Pieces(id(i)).front();
        Update(hasher, Entry{piece.begin, piece.length, targets(i), id(i)});
      }
      continue;
    }
    Update(hasher, source->cut.store().digest());
    Update(hasher, static_cast<int64_t>(options.packing));
    Update(hasher, int64_t{options.learns_all});
    Update(hasher, static_cast<int64_t>(options.truncation));
    Update(hasher, options.max_length);
    if (chosen_) hasher.Update(std::as_bytes(std::span(*chosen_)));
  }
  for (const SourceShare& share : mixture_) Update(hasher, share.weight);
  digest_ = hasher.Finish();
}

Dataset Dataset::SplitOff(double share, uint64_t seed) {
  std::vector<Numbered> stay(static_cast<size_t>(size()));
  for (size_t i = 0; i < stay.size(); ++i) stay[i].id = id(static_cast<int64_t>(i));
  const std::vector<Numbered> apart = keel::trainer::SplitOff(&stay, share, seed, kSplitStream);
  const auto ids = [](const std::vector<Numbered>& from) {
    std::vector<int64_t> list;
    for (const Numbered& one : from) list.push_back(one.id);
    return list;
  };
  Dataset other;
  other.sources_ = sources_;
  other.first_ = first_;
  other.chosen_ = ids(apart);
  chosen_ = ids(stay);
  Seal();
  other.Seal();
  return other;
}

int64_t Dataset::size() const { return chosen_ ? std::ssize(*chosen_) : first_.back(); }

std::pair<const Dataset::Source*, int64_t> Dataset::Find(int64_t index) const {
  const int64_t sample = id(index);
  const auto after = std::upper_bound(first_.begin(), first_.end(), sample);
  const auto source = static_cast<size_t>(after - first_.begin()) - 1;
  return {sources_[source].get(), sample - first_[source]};
}

Sample Dataset::Get(int64_t index) const {
  const auto [source, sample] = Find(index);
  Sample got = ValueOrThrow(source->cut.Read(sample));
  got.id = id(index);
  return got;
}

int64_t Dataset::targets(int64_t index) const {
  const auto [source, sample] = Find(index);
  return ValueOrThrow(source->cut.targets(sample));
}

int64_t Dataset::inputs(int64_t index) const {
  const auto [source, sample] = Find(index);
  return source->cut.inputs(sample);
}

}  // namespace keel::trainer
