// Every way in which a save can go, as one rank's state machine sees it: each thing that it asks
// for succeeds or fails, in all combinations, for 1 to 4 ranks.
#include "checkpoint/save/commit_protocol.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

namespace keel::checkpoint {
namespace {

using Action = CommitProtocol::Action;
using Event = CommitProtocol::Event;
using Kind = CommitProtocol::Action::Kind;

// One life of the machine.
struct Life {
  std::vector<Action> actions;
  std::vector<std::string> reports;  // as kPublish found them
  std::vector<bool> succeeded;       // what was asked for, in order
  Status first_failure;

  std::vector<Kind> Kinds() const {
    std::vector<Kind> kinds;
    for (const Action& action : actions) kinds.push_back(action.kind);
    return kinds;
  }
  int64_t Count(Kind kind) const {
    const std::vector<Kind> kinds = Kinds();
    return std::count(kinds.begin(), kinds.end(), kind);
  }
  // Positions; actions.size() when there is none.
  size_t First(Kind kind) const { return Find(kind, Message::kOrder, false); }
  size_t Sent(Message message) const { return Find(Kind::kSend, message, true); }
  size_t Find(Kind kind, Message message, bool compare) const {
    size_t i = 0;
    while (i < actions.size() &&
           (actions[i].kind != kind || (compare && actions[i].message != message)))
      ++i;
    return i;
  }
};

// What comes back for `action`: payload or failure.
Event Answer(const Action& action, bool ok) {
  Event event;
  std::string what;
  switch (action.kind) {
    case Kind::kBegin:
      event.kind = Event::Kind::kBegun;
      what = "order";
      break;
    case Kind::kWrite:
      event.kind = Event::Kind::kWritten;
      what = "report of this rank";
      break;
    case Kind::kReceive:
      event.kind = Event::Kind::kReceived;
      what = fmt::format("{} of {}", MessageName(action.message), action.peer);
      break;
    case Kind::kPublish:
      event.kind = Event::Kind::kPublished;
      what = "outcome";
      break;
    default:
      event.kind = Event::Kind::kConcluded;
  }
  if (ok) {
    event.payload = what;
  } else {
    event.status = Status(StatusCode::kIo, what + " failed");
  }
  return event;
}

bool IsAnswered(Kind kind) {
  return kind != Kind::kSend && kind != Kind::kAbort && kind != Kind::kFinish;
}

// All lives: `choices` says what succeeds; more choices are made as they are needed.
void Explore(int rank, int world, std::vector<bool> choices, std::vector<Life>* lives) {
  CommitProtocol protocol(rank, world);
  Life life;
  Event event;
  size_t used = 0;
  while (!protocol.finished()) {
    ASSERT_LT(life.actions.size(), 40U) << "it does not end";
    const std::vector<Action> todo = protocol.On(event);
    ASSERT_FALSE(todo.empty());
    for (size_t i = 0; i < todo.size(); ++i) {
      life.actions.push_back(todo[i]);
      // What is answered comes last, or the machine would be told while it has more to say.
      ASSERT_TRUE(!IsAnswered(todo[i].kind) || i + 1 == todo.size());
      if (!IsAnswered(todo[i].kind)) continue;
      if (todo[i].kind == Kind::kPublish) life.reports = protocol.reports();
      bool ok = true;
      if (todo[i].kind != Kind::kConclude) {  // which cannot fail
        if (used == choices.size()) {
          choices.push_back(false);
          Explore(rank, world, choices, lives);
          choices.back() = true;
        }
        ok = choices[used++];
        life.succeeded.push_back(ok);
      }
      event = Answer(todo[i], ok);
      if (!ok && life.first_failure.ok()) life.first_failure = event.status;
    }
    ASSERT_TRUE(protocol.finished() || IsAnswered(todo.back().kind));
  }
  lives->push_back(std::move(life));
}

TEST(CommitProtocol, TheLeaderInEveryCase) {
  for (int world = 1; world <= 4; ++world) {
    std::vector<Life> lives;
    Explore(0, world, {}, &lives);
    // Begin fails; or each of the `world` reports comes or does not, and when all do, publishing
    // succeeds or not.
    EXPECT_EQ(std::ssize(lives), 1 + (1 << world) + 1);
    for (const Life& life : lives) {
      const bool begun = life.succeeded[0];
      const bool all_wrote = begun && std::count(life.succeeded.begin() + 1,
                                                 life.succeeded.begin() + 1 + world, true) == world;
      const bool published = all_wrote && life.succeeded.back();
      SCOPED_TRACE(fmt::format("world {}, {}", world, fmt::join(life.succeeded, " ")));
      const size_t end = life.actions.size();
      EXPECT_EQ(life.Count(Kind::kFinish), 1);
      EXPECT_EQ(life.actions.back().kind, Kind::kFinish);
      EXPECT_EQ(life.actions.back().status.ok(), published);
      EXPECT_EQ(life.Count(Kind::kBegin), 1);
      EXPECT_EQ(life.actions[0].kind, Kind::kBegin);

      // 1. The order goes out at once, good or bad, and a bad one is all that anyone hears.
      EXPECT_EQ(life.Sent(Message::kOrder), 1U);
      EXPECT_EQ(life.actions[1].status.ok(), begun);
      EXPECT_EQ(life.Count(Kind::kWrite), begun ? 1 : 0);
      if (!begun) {
        EXPECT_EQ(end, 3U);
        EXPECT_EQ(life.actions.back().status.message(), "order failed");
        continue;
      }
      // 2. Every peer is waited for, in order, whatever the others said: nobody may still be
      // writing when the directory is removed.
      EXPECT_EQ(life.Count(Kind::kReceive), world - 1);
      // 3. Published when all have written, never otherwise.
      EXPECT_EQ(life.Count(Kind::kPublish), all_wrote ? 1 : 0);
      if (all_wrote) {
        EXPECT_EQ(std::ssize(life.reports), world);
        EXPECT_EQ(life.reports[0], "report of this rank");
        for (int r = 1; r < world; ++r)
          EXPECT_EQ(life.reports[static_cast<size_t>(r)], fmt::format("report of {}", r));
      }
      // 4. One outcome to all: a bad one as soon as it is known, a good one after publishing.
      const size_t outcome = life.Sent(Message::kOutcome);
      ASSERT_LT(outcome, end);
      EXPECT_EQ(life.Count(Kind::kSend), 2);
      EXPECT_EQ(life.actions[outcome].peer, CommitProtocol::kEveryPeer);
      EXPECT_EQ(life.actions[outcome].status.ok(), published);
      if (published) {
        EXPECT_EQ(life.actions[outcome].payload, "outcome");
        EXPECT_EQ(life.actions.back().payload, "outcome");
        EXPECT_EQ(life.actions[outcome - 1].kind, Kind::kPublish);
        EXPECT_EQ(life.actions[outcome + 1].kind, Kind::kConclude);
        EXPECT_EQ(life.Count(Kind::kAbort), 0);
        continue;
      }
      const auto failed = std::find(life.succeeded.begin() + 1, life.succeeded.end(), false) -
                          life.succeeded.begin();
      int answered = 0;
      size_t at = 0;
      while (answered <= failed) answered += IsAnswered(life.actions[at++].kind) ? 1 : 0;
      EXPECT_EQ(outcome, at) << "not told at once";
      // 5. The directory goes last, when nobody writes into it any more.
      EXPECT_EQ(life.Count(Kind::kAbort), 1);
      EXPECT_EQ(life.First(Kind::kAbort), end - 2);
      EXPECT_EQ(life.Count(Kind::kConclude), 0);
      // 6. The failure is the first one, and says whose.
      const std::string& message = life.actions.back().status.message();
      EXPECT_THAT(message, ::testing::HasSubstr(life.first_failure.message()));
      if (!all_wrote) {
        EXPECT_THAT(message, ::testing::StartsWith(fmt::format("rank {}: ", failed - 1)));
      }
      EXPECT_EQ(life.actions[outcome].status.message(), message);
    }
  }
}

TEST(CommitProtocol, AFollowerInEveryCase) {
  for (int world = 2; world <= 4; ++world) {
    std::vector<Life> lives;
    Explore(world - 1, world, {}, &lives);
    EXPECT_EQ(lives.size(), 5U);  // no order; written or not, and told good or bad
    for (const Life& life : lives) {
      SCOPED_TRACE(fmt::format("{}", fmt::join(life.succeeded, " ")));
      if (!life.succeeded[0]) {
        EXPECT_THAT(life.Kinds(), ::testing::ElementsAre(Kind::kReceive, Kind::kFinish));
        EXPECT_EQ(life.actions[1].status.message(), "order of 0 failed");
        continue;
      }
      EXPECT_THAT(life.Kinds(), ::testing::ElementsAre(Kind::kReceive, Kind::kWrite, Kind::kSend,
                                                       Kind::kReceive, Kind::kFinish));
      EXPECT_EQ(life.actions[0].message, Message::kOrder);
      EXPECT_EQ(life.actions[1].payload, "order of 0");
      // Whatever it wrote or failed to write is told, and rank 0 alone says how the save ended.
      EXPECT_EQ(life.actions[2].message, Message::kReport);
      EXPECT_EQ(life.actions[2].peer, 0);
      EXPECT_EQ(life.actions[2].status.ok(), life.succeeded[1]);
      EXPECT_EQ(life.actions[3].message, Message::kOutcome);
      EXPECT_EQ(life.actions[4].status.ok(), life.succeeded[2]);
    }
  }
}

TEST(CommitProtocol, AfterItsEndItSaysSo) {
  CommitProtocol protocol(0, 1);
  (void)protocol.On({});
  (void)protocol.On({Event::Kind::kBegun, Status(StatusCode::kIo, "no"), {}});
  ASSERT_TRUE(protocol.finished());
  const std::vector<Action> actions = protocol.On({});
  ASSERT_EQ(actions.size(), 1U);
  EXPECT_EQ(actions[0].status.code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace keel::checkpoint
