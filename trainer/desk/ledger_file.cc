#include "trainer/desk/ledger_file.h"

#include <span>
#include <utility>

#include "checkpoint/format/wire.h"
#include "common/hash.h"
#include "trainer/data/response_wire.h"

namespace keel::trainer::desk {

using checkpoint::WireReader;
using checkpoint::WireWriter;

namespace {

constexpr std::string_view kMagic = "KEELLEDG";
constexpr uint32_t kVersion = 4;
constexpr uint32_t kInOrder = 3;  // nothing is taken behind the frontier
constexpr uint32_t kWithoutTime = 2;
constexpr uint32_t kOldestVersion = 1;  // without what tools gave, either
enum class State : uint32_t { kPartial = 0, kFinished = 1 };

template <typename T>
void Put(const std::vector<T>& list, WireWriter* out) {
  out->Text({reinterpret_cast<const char*>(list.data()), list.size() * sizeof(T)});
}

template <typename T>
bool Take(WireReader* in, std::vector<T>* list) {
  std::string bytes;
  if (!in->Text(&bytes) || bytes.size() % sizeof(T) != 0) return false;
  list->resize(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(list->data(), bytes.data(), bytes.size());
  return true;
}

bool TakeFinished(WireReader* in, const SampleId& id, Finished* finished) {
  std::string response, text;
  if (!in->Text(&response) || !in->Text(&text) || !Take(in, &finished->spans)) return false;
  auto decoded = rl::DecodeStoredResponses(response);
  if (!decoded.ok() || decoded->size() != 1) return false;
  if (!rl::DecodeTexts(text, *decoded).ok()) return false;
  finished->response = std::move(decoded->front());
  return finished->response.position == id.position && finished->response.sample == id.sample;
}

bool TakePartial(WireReader* in, uint32_t format, Ledger::Entry* entry) {
  Partial& partial = entry->partial;
  if (!Take(in, &partial.tokens) || !Take(in, &partial.log_probs) || !Take(in, &partial.spans))
    return false;
  if (format == kOldestVersion) return true;
  if (!Take(in, &partial.given) || !in->Text(&partial.tool_memory)) return false;
  return format == kWithoutTime || (in->I64(&entry->spent_ms) && entry->spent_ms >= 0);
}

bool TakeAll(WireReader* in, uint32_t format, Ledger* ledger) {
  uint64_t versions = 0, samples = 0;
  std::vector<int64_t> taken;
  if (!in->I64(&ledger->frontier)) return false;
  if (format > kInOrder && !Take(in, &taken)) return false;
  for (const int64_t position : taken) {
    const int64_t before = ledger->taken.empty() ? ledger->frontier : *ledger->taken.rbegin();
    if (position <= before) return false;
    ledger->taken.insert(ledger->taken.end(), position);
  }
  if (!in->I64(&ledger->steps) || !in->U64(&versions)) return false;
  for (uint64_t i = 0; i < versions; ++i) {
    int64_t version = 0, steps = 0;
    if (!in->I64(&version) || !in->I64(&steps)) return false;
    ledger->versions[version] = steps;
  }
  if (!in->U64(&samples)) return false;
  for (uint64_t i = 0; i < samples; ++i) {
    SampleId id;
    State state{};
    if (!in->I64(&id.position) || !in->Pod(&id.sample) || !in->Pod(&state)) return false;
    Ledger::Entry& entry = ledger->samples[id];
    if (state == State::kFinished) {
      if (!TakeFinished(in, id, &entry.finished.emplace())) return false;
    } else if (state != State::kPartial || !TakePartial(in, format, &entry)) {
      return false;
    }
  }
  return in->AtEnd() && ledger->samples.size() == samples;
}

}  // namespace

std::string EncodeLedger(const Ledger& ledger) {
  WireWriter out;
  out.I64(ledger.frontier);
  Put(std::vector<int64_t>(ledger.taken.begin(), ledger.taken.end()), &out);
  out.I64(ledger.steps);
  out.U64(ledger.versions.size());
  for (const auto& [version, steps] : ledger.versions) {
    out.I64(version);
    out.I64(steps);
  }
  out.U64(ledger.samples.size());
  for (const auto& [id, entry] : ledger.samples) {
    out.I64(id.position);
    out.Pod(static_cast<int32_t>(id.sample));
    out.Pod(entry.finished ? State::kFinished : State::kPartial);
    if (entry.finished) {
      const std::span response(&entry.finished->response, 1);
      out.Text(rl::EncodeResponses(response));
      out.Text(rl::EncodeTexts(response));
      Put(entry.finished->spans, &out);
    } else {
      Put(entry.partial.tokens, &out);
      Put(entry.partial.log_probs, &out);
      Put(entry.partial.spans, &out);
      Put(entry.partial.given, &out);
      out.Text(entry.partial.tool_memory);
      out.I64(entry.spent_ms);
    }
  }
  const std::string body = std::move(out).Take();
  WireWriter file;
  file.Raw(kMagic);
  file.U32(kVersion);
  file.U64(Hash64(body));
  file.Raw(body);
  return std::move(file).Take();
}

Result<Ledger> DecodeLedger(std::string_view bytes) {
  const auto wrong = [](const char* what) {
    return Status(StatusCode::kInvalidData, std::string("rollout/ledger.bin ") + what);
  };
  if (!bytes.starts_with(kMagic)) return wrong("is no ledger of samples");
  WireReader head(bytes.substr(kMagic.size()));
  uint32_t version = 0;
  uint64_t checksum = 0;
  if (!head.U32(&version) || version < kOldestVersion || version > kVersion)
    return wrong("is of a version that this Keel does not read");
  if (!head.U64(&checksum)) return wrong("is torn");
  const std::string_view body = bytes.substr(kMagic.size() + sizeof version + sizeof checksum);
  if (Hash64(body) != checksum) return wrong("is damaged");
  WireReader in(body);
  Ledger ledger;
  if (!TakeAll(&in, version, &ledger)) return wrong("is damaged");
  return ledger;
}

}  // namespace keel::trainer::desk
