#include "trainer/desk/ledger_file.h"

#include <span>
#include <utility>

#include "common/hash.h"
#include "common/wire.h"
#include "trainer/data/response_wire.h"

namespace keel::trainer::desk {

namespace {

constexpr std::string_view kMagic = "KEELLEDG";
constexpr uint32_t kVersion = 4;
constexpr uint32_t kInOrder = 3;  // nothing is taken behind the frontier
constexpr uint32_t kWithoutTime = 2;
constexpr uint32_t kOldestVersion = 1;  // without what tools gave, either
enum class State : uint32_t { kPartial = 0, kFinished = 1 };

bool TakeFinished(WireReader* in, const SampleId& id, Finished* finished) {
  std::string response, text;
  if (!in->Text(&response) || !in->Text(&text) || !in->List(&finished->spans)) return false;
  auto decoded = rl::DecodeStoredResponses(response);
  if (!decoded.ok() || decoded->size() != 1) return false;
  if (!rl::DecodeTexts(text, *decoded).ok()) return false;
  finished->response = std::move(decoded->front());
  return finished->response.position == id.position && finished->response.sample == id.sample;
}

bool TakePartial(WireReader* in, uint32_t format, Ledger::Entry* entry) {
  Partial& partial = entry->partial;
  if (!in->List(&partial.tokens) || !in->List(&partial.log_probs) || !in->List(&partial.spans))
    return false;
  if (format == kOldestVersion) return true;
  if (!in->List(&partial.given) || !in->Text(&partial.tool_memory)) return false;
  return format == kWithoutTime || (in->I64(&entry->spent_ms) && entry->spent_ms >= 0);
}

bool TakeAll(WireReader* in, uint32_t format, Ledger* ledger) {
  uint64_t versions = 0, samples = 0;
  std::vector<int64_t> taken;
  if (!in->I64(&ledger->frontier)) return false;
  if (format > kInOrder && !in->List(&taken)) return false;
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
  out.List(std::vector<int64_t>(ledger.taken.begin(), ledger.taken.end()));
  out.I64(ledger.steps);
  out.Count(ledger.versions.size());
  for (const auto& [version, steps] : ledger.versions) out.I64(version).I64(steps);
  out.Count(ledger.samples.size());
  for (const auto& [id, entry] : ledger.samples) {
    out.I64(id.position).Pod(static_cast<int32_t>(id.sample));
    out.Pod(entry.finished ? State::kFinished : State::kPartial);
    if (entry.finished) {
      const std::span response(&entry.finished->response, 1);
      out.Text(rl::EncodeResponses(response)).Text(rl::EncodeTexts(response));
      out.List(entry.finished->spans);
    } else {
      const Partial& partial = entry.partial;
      out.List(partial.tokens).List(partial.log_probs).List(partial.spans).List(partial.given);
      out.Text(partial.tool_memory).I64(entry.spent_ms);
    }
  }
  const std::string body = std::move(out).Take();
  WireWriter file;
  file.Raw(kMagic).U32(kVersion).U64(Hash64(body)).Raw(body);
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
