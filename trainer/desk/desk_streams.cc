#include "trainer/desk/desk_streams.h"

#include "trainer/data/response_wire.h"

namespace keel::trainer::desk {

namespace {

// What neither a worker nor a ledger says.
void AddPrompt(const rl::Prompt& prompt, rl::Response* response) {
  response->row = prompt.id;
  response->data_source = prompt.data_source;
  response->prompt = prompt.tokens;
}

}  // namespace

Status DeskStreams::Open(Stream which, StreamOptions options, Ledger ledger, int64_t version) {
  KEEL_ASSIGN_OR_RETURN(DeskProtocol protocol,
                        DeskProtocol::Make(options.protocol, std::move(ledger)));
  protocol.ContinueLeases(next_lease_[which]);
  State state{std::move(protocol), std::move(options.prompt), options.texts, {}, {}};
  // The ledger of a checkpoint knows its version.
  if (version > state.protocol.newest_version())
    KEEL_RETURN_IF_ERROR(state.protocol.Publish(version, state.protocol.ledger().steps));
  streams_.insert_or_assign(which, std::move(state));
  return Status::Ok();
}

void DeskStreams::Close(Stream which) {
  const auto found = streams_.find(which);
  if (found == streams_.end()) return;
  reassigned_tokens_ += found->second.protocol.counts().reassigned_tokens;
  next_lease_[which] = found->second.protocol.next_lease();
  streams_.erase(found);
}

std::vector<Stream> DeskStreams::All() const {
  std::vector<Stream> all;
  for (const auto& [which, state] : streams_) all.push_back(which);
  return all;
}

Status DeskStreams::Publish(int64_t version, const StepCounts& steps) {
  for (auto& [which, state] : streams_)
    KEEL_RETURN_IF_ERROR(state.protocol.Publish(version, steps.at(which)));
  return Status::Ok();
}

StepCounts DeskStreams::Steps() const {
  StepCounts steps;
  for (const auto& [which, state] : streams_) steps[which] = state.protocol.ledger().steps;
  return steps;
}

void DeskStreams::Join(Stream which, int64_t worker, int64_t capacity, int64_t version) {
  State& state = streams_.at(which);
  const int64_t number = state.protocol.Join(capacity);
  state.numbers[worker] = number;
  state.workers[number] = worker;
  if (version > 0) ThrowIfError(state.protocol.Serve(number, version));
}

Status DeskStreams::Serve(int64_t worker, int64_t version) {
  for (auto& [which, state] : streams_)
    KEEL_RETURN_IF_ERROR(state.protocol.Serve(state.numbers.at(worker), version));
  return Status::Ok();
}

void DeskStreams::Leave(int64_t worker) {
  for (auto& [which, state] : streams_) {
    const auto number = state.numbers.find(worker);
    if (number == state.numbers.end()) continue;
    state.protocol.Leave(number->second);
    state.workers.erase(number->second);
    state.numbers.erase(number);
  }
}

Status DeskStreams::Hear(int64_t worker, const Progress& progress) {
  const auto found = streams_.find(progress.stream);
  if (found == streams_.end()) return Status::Ok();
  State& state = found->second;
  return state.protocol
      .Progress(state.numbers.at(worker), progress.lease, progress.from, progress.more)
      .status();
}

Status DeskStreams::Hear(int64_t worker, const Back& back) {
  const auto found = streams_.find(back.stream);
  if (found == streams_.end()) return Status::Ok();
  State& state = found->second;
  return state.protocol.GiveBack(state.numbers.at(worker), back.lease).status();
}

Status DeskStreams::Hear(int64_t worker, Done done) {
  const auto found = streams_.find(done.stream);
  if (found == streams_.end()) return Status::Ok();
  State& state = found->second;
  KEEL_ASSIGN_OR_RETURN(std::vector<rl::Response> responses, rl::DecodeResponses(done.response));
  if (responses.size() != 1)
    return Status(StatusCode::kInvalidData, "it sends another number of responses than one");
  if (!done.text.empty()) KEEL_RETURN_IF_ERROR(rl::DecodeTexts(done.text, responses));
  return state.protocol
      .Finish(state.numbers.at(worker), done.lease,
              {std::move(responses[0]), std::move(done.spans)})
      .status();
}

std::vector<std::pair<int64_t, Assign>> DeskStreams::AssignAll() {
  std::vector<std::pair<int64_t, Assign>> orders;
  for (auto& [which, state] : streams_) {
    for (auto& [number, assignments] : state.protocol.Assign()) {
      const int64_t worker = state.workers.at(number);
      for (Assignment& one : assignments) {
        orders.emplace_back(
            worker, Assign{which, one.lease, one.id, state.texts, state.prompt(one.id.position),
                           std::move(one.so_far), one.until});
      }
    }
  }
  return orders;
}

DeskStreams::Overdue DeskStreams::Elapse(Stream which, int64_t ms) {
  State& state = streams_.at(which);
  DeskProtocol::Overdue found = state.protocol.Elapse(ms);
  Overdue overdue;
  for (const auto& [number, lease] : found.ask)
    overdue.ask.emplace_back(state.workers.at(number), Conclude{which, lease});
  overdue.ended = std::move(found.ended);
  for (const int64_t number : found.stuck) overdue.stuck.push_back(state.workers.at(number));
  return overdue;
}

StreamBatch DeskStreams::Take(Stream which) {
  State& state = streams_.at(which);
  StreamBatch taken{{}, state.protocol.ledger().steps, state.protocol.ledger().versions};
  taken.finished = state.protocol.Take();
  for (Finished& one : taken.finished)
    AddPrompt(state.prompt(one.response.position), &one.response);
  return taken;
}

bool DeskStreams::Settled(Stream which) const {
  const auto found = streams_.find(which);
  return found == streams_.end() || found->second.protocol.Settled();
}

DeskProtocol::Counts DeskStreams::CountsOf(Stream which) const {
  const auto found = streams_.find(which);
  return found == streams_.end() ? DeskProtocol::Counts() : found->second.protocol.counts();
}

int64_t DeskStreams::reassigned_tokens() const {
  int64_t sum = reassigned_tokens_;
  for (const auto& [which, state] : streams_) sum += state.protocol.counts().reassigned_tokens;
  return sum;
}

std::map<int64_t, int64_t> DeskStreams::Held() const {
  std::map<int64_t, int64_t> held;
  for (const auto& [which, state] : streams_)
    for (const auto& [worker, number] : state.numbers) held[worker] += state.protocol.Held(number);
  return held;
}

Json DeskStreams::Describe() const {
  Json streams = Json::object();
  for (const auto& [which, state] : streams_) {
    const DeskProtocol::Counts counts = state.protocol.counts();
    streams[which == Stream::kTrain ? "train" : "validation"] = {
        {"frontier", state.protocol.ledger().frontier},
        {"steps", state.protocol.ledger().steps},
        {"finished", counts.finished},
        {"running", counts.running},
        {"waiting", counts.waiting}};
  }
  return streams;
}

}  // namespace keel::trainer::desk
