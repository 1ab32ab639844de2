#include "parallel/store/store_service.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace keel::parallel {

namespace {

// Of whoever has not been admitted: more than any such message.
constexpr size_t kMostUnproven = 128;

int64_t ToNumber(const std::string& text) {
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

StoreService::Connection StoreService::Open() {
  peers_.emplace(next_, Peer());
  return next_++;
}

void StoreService::Close(Connection connection) {
  EndWait(connection, peers_.at(connection));
  peers_.erase(connection);
  std::erase(ready_, connection);
}

std::vector<StoreService::Connection> StoreService::TakeReady() {
  for (const Connection connection : ready_) peers_.at(connection).ready = false;
  return std::exchange(ready_, {});
}

Status StoreService::Receive(Connection connection, std::string_view bytes) {
  Peer& peer = peers_.at(connection);
  peer.input.append(bytes);
  size_t done = 0;
  Taken taken = Taken::kAll;
  while (taken == Taken::kAll && done < peer.input.size()) {
    QueryReader in(std::string_view(peer.input).substr(done));
    taken = Handle(connection, peer, in);
    if (in.malformed()) taken = Taken::kNonsense;
    if (taken == Taken::kAll) done = peer.input.size() - in.remaining();
  }
  peer.input.erase(0, done);
  if (taken == Taken::kNonsense)
    return Status(StatusCode::kInvalidData, "what came is no query that is allowed here");
  if (peer.stage != Stage::kAdmitted && peer.input.size() > kMostUnproven)
    return Status(StatusCode::kInvalidData, "too much came before a proof");
  return Status::Ok();
}

StoreService::Taken StoreService::Handle(Connection connection, Peer& peer, QueryReader& in) {
  if (peer.stage == Stage::kProving) {
    Sha256Digest proof{};
    if (!in.Pod(&proof)) return Taken::kMore;
    if (!SameDigest(proof, StoreProof(secret_, Prover::kClient, peer.of_client, peer.of_server))) {
      Refuse(connection, peer, kWrongSecret);
      return Taken::kNonsense;
    }
    peer.stage = Stage::kProved;
    Send(connection, peer,
         WireWriter().Pod(StoreProof(secret_, Prover::kServer, peer.of_client, peer.of_server)));
    return Taken::kAll;
  }
  StoreQuery query{};
  if (!in.Pod(&query)) return Taken::kMore;
  return peer.stage == Stage::kAdmitted ? Answer(connection, peer, query, in)
                                        : Admit(connection, peer, query, in);
}

StoreService::Taken StoreService::Admit(Connection connection, Peer& peer, StoreQuery query,
                                        QueryReader& in) {
  if (query == StoreQuery::kProve && peer.stage == Stage::kNew) {
    uint8_t version = 0;
    if (!in.Pod(&version) || !in.Pod(&peer.of_client)) return Taken::kMore;
    if (secret_.empty()) Refuse(connection, peer, kHasNoSecret);
    if (secret_.empty() || version != kProofVersion) return Taken::kNonsense;
    peer.of_server = MakeStoreNonce();
    peer.stage = Stage::kProving;
    Send(connection, peer, WireWriter().Pod(peer.of_server));
    return Taken::kAll;
  }
  uint32_t magic = 0;
  if (query != StoreQuery::kValidate) return Taken::kNonsense;
  if (!in.Pod(&magic)) return Taken::kMore;
  if (magic != kStoreMagic) return Taken::kNonsense;
  if (!secret_.empty() && peer.stage != Stage::kProved) {
    Refuse(connection, peer, kNeedsSecret);
    return Taken::kNonsense;
  }
  peer.stage = Stage::kAdmitted;
  return Taken::kAll;
}

StoreService::Taken StoreService::Answer(Connection connection, Peer& peer, StoreQuery query,
                                         QueryReader& in) {
  std::string key, expected, value;
  std::vector<std::string> keys;
  const auto text_of = [&](const std::string& name) {
    const auto it = values_.find(name);
    return it == values_.end() ? std::string() : it->second;
  };
  switch (query) {
    case StoreQuery::kPing: {
      uint32_t nonce = 0;
      if (!in.Pod(&nonce)) return Taken::kMore;
      Send(connection, peer, WireWriter().Pod(nonce));
      return Taken::kAll;
    }
    case StoreQuery::kSet:
      if (!in.Text(&key) || !in.Text(&value)) return Taken::kMore;
      Change(key, std::move(value));
      return Taken::kAll;
    case StoreQuery::kCompareSet: {
      if (!in.Text(&key) || !in.Text(&expected) || !in.Text(&value)) return Taken::kMore;
      // Of a key that is not there: set if nothing was expected; else what was expected is said.
      const auto it = values_.find(key);
      const bool set = it == values_.end() ? expected.empty() : it->second == expected;
      const std::string answer = set ? value : it == values_.end() ? expected : it->second;
      Send(connection, peer, WireWriter().Text(answer));
      if (set) Change(key, std::move(value));
      return Taken::kAll;
    }
    case StoreQuery::kGet:
      if (!in.Text(&key)) return Taken::kMore;
      Send(connection, peer, WireWriter().Text(text_of(key)));
      return Taken::kAll;
    case StoreQuery::kAdd: {
      int64_t amount = 0;
      if (!in.Text(&key) || !in.Pod(&amount)) return Taken::kMore;
      const auto sum = static_cast<int64_t>(static_cast<uint64_t>(ToNumber(text_of(key))) +
                                            static_cast<uint64_t>(amount));
      Send(connection, peer, WireWriter().Pod(sum));
      Change(key, std::to_string(sum));
      return Taken::kAll;
    }
    case StoreQuery::kCheck:
      if (!in.Texts(&keys)) return Taken::kMore;
      Send(connection, peer, WireWriter().Pod(HasAll(keys) ? kReady : kNotReady));
      return Taken::kAll;
    case StoreQuery::kWait:
      if (!in.Texts(&keys)) return Taken::kMore;
      EndWait(connection, peer);
      peer.waits_for = std::move(keys);
      GoOnWaiting(connection, peer);
      return Taken::kAll;
    case StoreQuery::kCancelWait:
      EndWait(connection, peer);
      Send(connection, peer, WireWriter().Pod(kWaitCancelled));
      return Taken::kAll;
    case StoreQuery::kNumKeys:
      Send(connection, peer, WireWriter().Count<int64_t>(values_.size()));
      return Taken::kAll;
    case StoreQuery::kDelete:
      if (!in.Text(&key)) return Taken::kMore;
      Send(connection, peer, WireWriter().Pod(static_cast<int64_t>(values_.erase(key))));
      return Taken::kAll;
    case StoreQuery::kAppend:
      if (!in.Text(&key) || !in.Text(&value)) return Taken::kMore;
      Change(key, text_of(key) + value);
      return Taken::kAll;
    case StoreQuery::kMultiGet: {
      if (!in.Texts(&keys)) return Taken::kMore;
      WireWriter out;
      for (const std::string& name : keys) out.Text(text_of(name));
      Send(connection, peer, out);
      return Taken::kAll;
    }
    case StoreQuery::kMultiSet: {
      uint64_t count = 0;
      if (!in.Pod(&count)) return Taken::kMore;
      if (count > kMostKeys) return Taken::kNonsense;
      std::vector<std::pair<std::string, std::string>> pairs(count);
      for (auto& [name, text] : pairs) {
        if (!in.Text(&name) || !in.Text(&text)) return Taken::kMore;
      }
      for (auto& [name, text] : pairs) Change(name, std::move(text));
      return Taken::kAll;
    }
    case StoreQuery::kValidate:
    case StoreQuery::kProve:
      break;
  }
  return Taken::kNonsense;
}

void StoreService::Refuse(Connection connection, Peer& peer, std::string_view refusal) {
  peer.output.append(refusal);
  Send(connection, peer, WireWriter());
}

void StoreService::Send(Connection connection, Peer& peer, const WireWriter& out) {
  peer.output.append(out.bytes());
  if (!std::exchange(peer.ready, true)) ready_.push_back(connection);
}

void StoreService::Change(const std::string& key, std::string value) {
  values_[key] = std::move(value);
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return;
  const std::vector<Connection> those = std::move(found->second);
  waiting_.erase(found);
  for (const Connection connection : those) GoOnWaiting(connection, peers_.at(connection));
}

void StoreService::GoOnWaiting(Connection connection, Peer& peer) {
  for (const std::string& key : peer.waits_for) {
    if (values_.contains(key)) continue;
    peer.awaited = key;
    waiting_[key].push_back(connection);
    return;
  }
  peer.waits_for.clear();
  Send(connection, peer, WireWriter().Pod(kWaitDone));
}

void StoreService::EndWait(Connection connection, Peer& peer) {
  if (peer.waits_for.empty()) return;
  peer.waits_for.clear();
  const auto found = waiting_.find(peer.awaited);
  std::erase(found->second, connection);
  if (found->second.empty()) waiting_.erase(found);
}

bool StoreService::HasAll(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(),
                     [&](const std::string& key) { return values_.contains(key); });
}

}  // namespace keel::parallel
