#include "checkpoint/save/commit_protocol.h"

#include <fmt/format.h>

#include <utility>

namespace keel::checkpoint {

using Action = CommitProtocol::Action;
using Event = CommitProtocol::Event;

std::string_view MessageName(Message message) {
  switch (message) {
    case Message::kOrder:
      return "order";
    case Message::kReport:
      return "report";
    case Message::kOutcome:
      return "outcome";
  }
  return "?";
}

namespace {

Action Do(Action::Kind kind, std::string payload = {}) {
  return {kind, 0, Message::kOrder, Status::Ok(), std::move(payload)};
}

Action Send(int peer, Message message, const Status& status, std::string payload = {}) {
  return {Action::Kind::kSend, peer, message, status, std::move(payload)};
}

Action Receive(int peer, Message message) {
  return {Action::Kind::kReceive, peer, message, Status::Ok(), {}};
}

}  // namespace

std::vector<Action> CommitProtocol::On(const Event& event) {
  return rank_ == 0 ? OnLeader(event) : OnFollower(event);
}

std::vector<Action> CommitProtocol::Finish(std::vector<Action> actions, Status status,
                                           std::string payload) {
  state_ = State::kDone;
  actions.push_back(
      {Action::Kind::kFinish, 0, Message::kOutcome, std::move(status), std::move(payload)});
  return actions;
}

std::vector<Action> CommitProtocol::OnFollower(const Event& event) {
  switch (state_) {
    case State::kIdle:
      state_ = State::kAwaitingOrder;
      return {Receive(0, Message::kOrder)};
    case State::kAwaitingOrder:
      if (!event.status.ok()) return Finish({}, event.status);
      state_ = State::kWriting;
      return {Do(Action::Kind::kWrite, event.payload)};
    case State::kWriting:
      state_ = State::kAwaitingOutcome;
      return {Send(0, Message::kReport, event.status, event.payload),
              Receive(0, Message::kOutcome)};
    case State::kAwaitingOutcome:
      return Finish({}, event.status, event.payload);
    default:
      return Finish({}, Status(StatusCode::kInternal, "the commit protocol is at its end"));
  }
}

void CommitProtocol::Fail(const Status& status, std::vector<Action>* actions) {
  if (!failure_.ok()) return;
  failure_ = status;
  actions->push_back(Send(kEveryPeer, Message::kOutcome, status));
}

std::vector<Action> CommitProtocol::Collect() {
  if (next_ < world_) {
    state_ = State::kCollecting;
    return {Receive(next_, Message::kReport)};
  }
  if (!failure_.ok()) return Finish({Do(Action::Kind::kAbort)}, failure_);
  state_ = State::kPublishing;
  return {Do(Action::Kind::kPublish)};
}

std::vector<Action> CommitProtocol::OnLeader(const Event& event) {
  std::vector<Action> actions;
  switch (state_) {
    case State::kIdle:
      state_ = State::kBeginning;
      return {Do(Action::Kind::kBegin)};
    case State::kBeginning:
      actions.push_back(Send(kEveryPeer, Message::kOrder, event.status, event.payload));
      if (!event.status.ok()) return Finish(std::move(actions), event.status);
      state_ = State::kWriting;
      actions.push_back(Do(Action::Kind::kWrite, event.payload));
      return actions;
    case State::kWriting:
    case State::kCollecting: {
      const int from = state_ == State::kWriting ? 0 : next_++;
      if (event.status.ok()) {
        reports_.push_back(event.payload);
      } else {
        Fail(event.status.WithContext(fmt::format("rank {}", from)), &actions);
      }
      std::vector<Action> next = Collect();
      actions.insert(actions.end(), std::make_move_iterator(next.begin()),
                     std::make_move_iterator(next.end()));
      return actions;
    }
    case State::kPublishing:
      if (!event.status.ok()) {
        Fail(event.status, &actions);
        actions.push_back(Do(Action::Kind::kAbort));
        return Finish(std::move(actions), event.status);
      }
      state_ = State::kConcluding;
      reports_.clear();
      reports_.push_back(event.payload);  // the outcome, for kFinish
      return {Send(kEveryPeer, Message::kOutcome, Status::Ok(), event.payload),
              Do(Action::Kind::kConclude)};
    case State::kConcluding:
      return Finish({}, Status::Ok(), std::move(reports_[0]));
    default:
      return Finish({}, Status(StatusCode::kInternal, "the commit protocol is at its end"));
  }
}

}  // namespace keel::checkpoint
