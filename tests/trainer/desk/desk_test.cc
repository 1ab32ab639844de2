// The desk over real connections: what workers are given, what becomes of those that end, fall
// silent or say what cannot be.

#include "trainer/desk/desk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/files/whole_file.h"
#include "parallel/store/sockets.h"
#include "tests/trainer/data/tokens/scratch_folder.h"
#include "trainer/data/response_wire.h"
#include "trainer/desk/desk_client.h"

namespace keel::trainer::desk {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr milliseconds kLong{20'000};
using For = desk::Desk::For;

constexpr int64_t kPositions = 4;

LogOptions Quiet() {
  LogOptions options;
  options.level = LogLevel::kError;
  return options;
}

class DeskTest : public ::testing::Test {
 protected:
  DeskTest() : log_(Quiet()) {
    for (int64_t i = 0; i < kPositions; ++i) {
      rl::Prompt prompt;
      prompt.id = 100 + i;
      prompt.tokens = {static_cast<int32_t>(i)};
      prompts_.push_back(prompt);
    }
  }

  static DeskSettings Settings(milliseconds timeout = kLong) {
    DeskSettings settings;
    settings.host = "127.0.0.1";
    settings.secret = "secret";
    settings.worker_timeout = timeout;
    settings.facts = {{"trainer.seed", "1"}};
    return settings;
  }

  void Start(milliseconds timeout = kLong) {
    desk_ = ValueOrThrow(desk::Desk::Start(Settings(timeout), log_));
  }

  // Two samples of each position, all of which are one batch.
  void Open(int64_t max_staleness = 0, int64_t max_response_ms = 0) {
    StreamOptions options;
    options.protocol.max_response_ms = max_response_ms;
    options.protocol.max_staleness = max_staleness;
    options.protocol.batch = kPositions;
    options.protocol.samples = {0, 1};
    options.protocol.end = kPositions;
    options.prompt = [this](int64_t position) {
      return prompts_.at(static_cast<size_t>(position));
    };
    ThrowIfError(desk_->Open(Stream::kTrain, std::move(options), Ledger()));
  }

  std::unique_ptr<DeskClient> Connect(const std::string& secret = "secret") {
    return ValueOrThrow(
        DeskClient::Connect({"127.0.0.1", desk_->port(), secret}, kLong, milliseconds(5000)));
  }

  // A worker that is linked and serves version 1.
  std::unique_ptr<DeskClient> Join(int64_t capacity = 64, uint64_t digest = 5) {
    auto client = Connect();
    ThrowIfError(client->Send(Hello{"w", {1}, capacity, {{"trainer.seed", "1"}}}));
    const auto welcome = Next<Welcome>(*client);
    EXPECT_EQ(desk_->Newcomers().size(), 1u);
    desk_->TellLink(welcome.worker, LinkUp{"link", {0}});
    Next<LinkUp>(*client);
    desk_->TellPush(welcome.worker, 1);
    EXPECT_EQ(Next<Push>(*client).version, 1);
    ThrowIfError(client->Send(Serving{1, digest}));
    return client;
  }

  template <typename T>
  static T Next(DeskClient& client) {
    const auto message = ValueOrThrow(client.Receive(kLong));
    if (!message || !std::holds_alternative<T>(*message))
      throw Error(StatusCode::kInternal, "another message was expected");
    return std::get<T>(*message);
  }

  // What it is assigned by now, at least `count`.
  static std::vector<Assign> Assigned(DeskClient& client, size_t count) {
    std::vector<Assign> all;
    while (all.size() < count) all.push_back(Next<Assign>(client));
    return all;
  }

  // The response to it: its position, then its sample.
  static rl::Response Answer(const Assign& order) {
    rl::Response response;
    response.position = order.id.position;
    response.sample = order.id.sample;
    response.tokens = {static_cast<int32_t>(order.id.position), order.id.sample};
    response.finish = "stop";
    response.score = 1;
    return response;
  }
  static Done DoneOf(const Assign& order) {
    const rl::Response response = Answer(order);
    Done done{order.stream, order.lease, {}, rl::EncodeResponses(std::span(&response, 1)), ""};
    if (order.so_far.size() < 2) done.spans = {{0, 1}};
    return done;
  }

  void ExpectAll() {
    ASSERT_EQ(desk_->Wait(Stream::kTrain, For::kBatch, kLong), desk::Desk::Event::kReady);
    const std::vector<Finished> taken = desk_->Take(Stream::kTrain).finished;
    ASSERT_EQ(taken.size(), 2u * kPositions);
    for (size_t i = 0; i < taken.size(); ++i) {
      const rl::Response& r = taken[i].response;
      EXPECT_EQ(r.position, static_cast<int64_t>(i / 2));
      EXPECT_EQ(r.sample, static_cast<int>(i % 2));
      EXPECT_EQ(r.tokens, (std::vector<int32_t>{static_cast<int32_t>(i / 2), r.sample}));
      EXPECT_EQ(r.row, 100 + r.position);
      EXPECT_EQ(taken[i].spans, (std::vector<VersionSpan>{{0, 1}}));
    }
  }

  Logger log_;
  std::vector<rl::Prompt> prompts_;
  std::unique_ptr<desk::Desk> desk_;
};

TEST_F(DeskTest, WorkersShareABatch) {
  Start();
  Open();
  // Either has room for half.
  auto first = Join(kPositions), second = Join(kPositions);
  ThrowIfError(desk_->Publish(1, 5, desk_->Steps()));
  for (DeskClient* client : {first.get(), second.get()}) {
    for (const Assign& order : Assigned(*client, kPositions)) {
      EXPECT_EQ(order.prompt.tokens, prompts_[static_cast<size_t>(order.id.position)].tokens);
      ThrowIfError(client->Send(DoneOf(order)));
    }
  }
  ExpectAll();
  EXPECT_EQ(desk_->counts(Stream::kTrain).workers, 2);
  desk_->Finish();
  desk_.reset();
  EXPECT_TRUE(Next<Bye>(*first).over);
  EXPECT_TRUE(Next<Bye>(*second).over);
}

// One that stood still had something to say first: it took the run that was over for one that had
// died.
TEST_F(DeskTest, WhoSpeaksAfterTheEndStillHearsThatTheRunIsOver) {
  Start();
  Open();
  auto worker = Join();
  desk_->Finish();
  desk_.reset();
  for (int i = 0; i < 100; ++i) {  // the first is not known to be in vain
    EXPECT_EQ(worker->Send(Serving{1, 5}).ToString(), "ok");
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_TRUE(Next<Bye>(*worker).over);
}

// Of an error, or stopped: who joined is to come back.
TEST_F(DeskTest, WorkersHearThatTheTrainersEndBeforeTheRun) {
  Start();
  Open();
  auto worker = Join();
  desk_.reset();
  EXPECT_FALSE(Next<Bye>(*worker).over);
}

TEST_F(DeskTest, NothingIsAssignedBeforeAVersionIsPublishedAndServed) {
  Start();
  Open();
  auto worker = Join();
  EXPECT_FALSE(ValueOrThrow(worker->Receive(milliseconds(300))));
  ThrowIfError(desk_->Publish(1, 5, desk_->Steps()));
  Assigned(*worker, 2 * kPositions);
}

// The trainers may still be sending a version to others when a worker has tokens of it.
TEST_F(DeskTest, WordsOfAVersionThatIsNotPublishedYetWaitForThat) {
  Start();
  Open(1);
  auto worker = Join();
  ThrowIfError(desk_->Publish(1, 5, desk_->Steps()));
  const std::vector<Assign> orders = Assigned(*worker, 2 * kPositions);
  ThrowIfError(worker->Send(Serving{2, 7}));
  for (const Assign& order : orders) {
    Done done = DoneOf(order);
    done.spans = {{0, 1}, {1, 2}};
    ThrowIfError(worker->Send(done));
  }
  EXPECT_EQ(desk_->Wait(Stream::kTrain, For::kBatch, milliseconds(300)),
            desk::Desk::Event::kNothing);
  ThrowIfError(desk_->Publish(2, 7, desk_->Steps()));
  ASSERT_EQ(desk_->Wait(Stream::kTrain, For::kBatch, kLong), desk::Desk::Event::kReady);
  EXPECT_EQ(desk_->Take(Stream::kTrain).finished[0].spans,
            (std::vector<VersionSpan>{{0, 1}, {1, 2}}));
}

TEST_F(DeskTest, WhatALostWorkerReportedGoesOnAtAnother) {
  Start();
  Open();
  auto lost = Join();
  ThrowIfError(desk_->Publish(1, 5, desk_->Steps()));
  for (const Assign& order : Assigned(*lost, 2 * kPositions)) {
    if (order.id.position == 1) {
      ThrowIfError(lost->Send(Progress{order.stream, order.lease, 0, Partial{{1}, {}, {{0, 1}}}}));
    }
    if (order.id.position == 2) ThrowIfError(lost->Send(DoneOf(order)));
  }
  lost.reset();
  auto other = Join();
  for (const Assign& order : Assigned(*other, 2 * kPositions - 2)) {
    EXPECT_NE(order.id.position, 2);
    EXPECT_EQ(order.so_far.size(), order.id.position == 1 ? 1 : 0);
    ThrowIfError(other->Send(DoneOf(order)));
  }
  ExpectAll();
  EXPECT_EQ(desk_->counts(Stream::kTrain).lost, 1);
  EXPECT_EQ(desk_->counts(Stream::kTrain).reassigned_tokens, 2);
}

TEST_F(DeskTest, AWorkerThatFallsSilentIsGivenUp) {
  Start(milliseconds(4000));
  Open();
  auto silent = Join();  // whose heart beats every 20 s
  ThrowIfError(desk_->Publish(1, 5, desk_->Steps()));
  Assigned(*silent, 2 * kPositions);
  EXPECT_THAT(Next<Refused>(*silent).message, HasSubstr("nothing was heard of it for 4 s"));
  auto other = Join();
  for (const Assign& order : Assigned(*other, 2 * kPositions))
    ThrowIfError(other->Send(DoneOf(order)));
  // Words of the one that was given up change nothing.
  ExpectAll();
}

TEST_F(DeskTest, AResponseThatTakesTooLongIsAskedForAndThenEnded) {
  Start();
  Open(0, 2000);
  auto worker = Join();
  ThrowIfError(desk_->Publish(1, 5, desk_->Steps()));
  const std::vector<Assign> orders = Assigned(*worker, 2 * kPositions);
  const Assign& slow = orders[3];
  ThrowIfError(worker->Send(Progress{slow.stream, slow.lease, 0, Partial{{6}, {}, {{0, 1}}}}));
  for (const Assign& order : orders)
    if (order.lease != slow.lease) ThrowIfError(worker->Send(DoneOf(order)));
  while (Next<Conclude>(*worker).lease != slow.lease) {
  }
  ASSERT_EQ(desk_->Wait(Stream::kTrain, For::kBatch, kLong), desk::Desk::Event::kReady);
  EXPECT_GE(desk_->counts(Stream::kTrain).samples.overdue, 1);
  const std::vector<Finished> taken = desk_->Take(Stream::kTrain).finished;
  ASSERT_EQ(taken.size(), 2u * kPositions);
  for (const Finished& one : taken) {
    const bool ended = SampleId{one.response.position, one.response.sample} == slow.id;
    EXPECT_EQ(one.response.failed(), ended);
    EXPECT_EQ(one.response.row, 100 + one.response.position);
    EXPECT_EQ(one.response.tokens.size(), ended ? 1U : 2U);
  }
}

TEST_F(DeskTest, AWorkerOfWhichNothingComesIsGivenUp) {
  Start();
  Open(0, 400);
  auto stuck = Join();  // its heart beats
  ThrowIfError(desk_->Publish(1, 5, desk_->Steps()));
  Assigned(*stuck, 2 * kPositions);
  for (int i = 0; i < 2 * kPositions; ++i) Next<Conclude>(*stuck);
  EXPECT_THAT(Next<Refused>(*stuck).message, HasSubstr("nothing has come for"));
  auto other = Join();
  for (const Assign& order : Assigned(*other, 2 * kPositions))
    ThrowIfError(other->Send(DoneOf(order)));
  ExpectAll();
}

TEST_F(DeskTest, WhoIsNotOfThisRunIsTurnedAway) {
  Start();
  const auto wrong =
      DeskClient::Connect({"127.0.0.1", desk_->port(), "other"}, kLong, milliseconds(5000));
  EXPECT_EQ(wrong.status().code(), StatusCode::kUsage) << wrong.status().ToString();
  auto other = Connect();
  ThrowIfError(other->Send(Hello{"w", {1}, 64, {{"trainer.seed", "2"}}}));
  EXPECT_THAT(Next<Refused>(*other).message, HasSubstr("trainer.seed is 2 there and 1 here"));
  EXPECT_TRUE(desk_->Newcomers().empty());
}

TEST_F(DeskTest, AWorkerThatRoundsInAnotherWayIsWarnedOfAndTaken) {
  const ScratchFolder scratch;
  const std::string file = scratch.path() + "/log.txt";
  LogOptions options;
  options.file = file;
  Logger log(options);
  DeskSettings settings = Settings();
  settings.rounding = {{"arithmetic", "AVX512"}};
  desk_ = ValueOrThrow(desk::Desk::Start(settings, log));
  std::vector<std::unique_ptr<DeskClient>> workers;
  for (const char* arithmetic : {"AVX512", "AVX2"}) {
    workers.push_back(Connect());
    const Hello hello{arithmetic, {1}, 64, {{"trainer.seed", "1"}, {"arithmetic", arithmetic}}};
    ThrowIfError(workers.back()->Send(hello));
    Next<Welcome>(*workers.back());
  }
  EXPECT_EQ(desk_->Newcomers().size(), 2U);
  desk_.reset();  // it has said all that it will
  const std::string said = ValueOrThrow(ReadWholeFile(file));
  EXPECT_THAT(said, HasSubstr("arithmetic is AVX2 on rollout worker AVX2 and AVX512 on the ranks"));
  EXPECT_THAT(said, Not(HasSubstr("on rollout worker AVX512")));
}

// A port mistyped: it said that the desk does not answer, or that its frames arrive damaged.
TEST_F(DeskTest, WhoConnectsToAnotherProgramHearsWhereThatIs) {
  const parallel::Socket listener = ValueOrThrow(parallel::Listen("127.0.0.1", 0));
  ASSERT_EQ(fcntl(listener.fd(), F_SETFL, 0), 0);  // its accept waits
  const auto connect = [&] {
    return DeskClient::Connect({"127.0.0.1", parallel::PortOf(listener), "secret"}, kLong,
                               milliseconds(500))
        .status();
  };
  const Status silent = connect();
  EXPECT_EQ(silent.code(), StatusCode::kDeadlineExceeded);
  std::thread other([&] {
    const std::string bytes = "220 mail.example.org ESMTP\r\n";
    for (parallel::Socket one;
         (one = parallel::Socket(accept(listener.fd(), nullptr, nullptr))).fd() >= 0;)
      (void)send(one.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  });
  const Status speaks = connect();
  shutdown(listener.fd(), SHUT_RDWR);
  other.join();
  EXPECT_EQ(speaks.code(), StatusCode::kUnavailable);
  for (const Status& status : {silent, speaks, connect()}) {
    EXPECT_THAT(status.message(), HasSubstr(fmt::format("no desk of a run answers at 127.0.0.1:{}",
                                                        parallel::PortOf(listener))));
    EXPECT_THAT(status.message(), HasSubstr("the port that the run has printed"));
  }
}

TEST_F(DeskTest, OtherWeightsThanWereSentAreNotServed) {
  Start();
  Open();
  auto worker = Join(64, 6);
  ThrowIfError(desk_->Publish(1, 5, desk_->Steps()));
  EXPECT_THAT(Next<Refused>(*worker).message, HasSubstr("digest 0000000000000006"));
}

TEST_F(DeskTest, AWorkerThatSaysWhatCannotBeIsGivenUpAlone) {
  Start();
  Open();
  auto liar = Join(kPositions);
  ThrowIfError(desk_->Publish(1, 5, desk_->Steps()));
  const std::vector<Assign> orders = Assigned(*liar, kPositions);
  auto honest = Join();
  rl::Response response = Answer(orders[0]);
  response.sample += 5;
  Done done = DoneOf(orders[0]);
  done.response = rl::EncodeResponses(std::span(&response, 1));
  ThrowIfError(liar->Send(done));
  EXPECT_THAT(Next<Refused>(*liar).message, HasSubstr("another response than the one"));
  for (const Assign& order : Assigned(*honest, 2 * kPositions))
    ThrowIfError(honest->Send(DoneOf(order)));
  ExpectAll();
}

TEST_F(DeskTest, WhoGoesOnSpeakingHearsWhyNobodyListens) {
  Start();
  const auto client = Connect();
  Status sent = client->Send(Serving{1, 5});  // before it has a link
  const auto until = std::chrono::steady_clock::now() + kLong;
  while (sent.ok() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(20));
    sent = client->Send(Heartbeat{});
  }
  EXPECT_THAT(sent.message(), HasSubstr("the desk: it speaks of samples before it has a link"));
}

// The ranks that train agree on who is new before they say how to link.
TEST_F(DeskTest, AWorkerThatIsGivenUpBeforeItHearsOfItsLinkIsNotLinked) {
  Start();
  Open();
  auto lost = Connect();
  ThrowIfError(lost->Send(Hello{"w", {1}, 64, {{"trainer.seed", "1"}}}));
  const int64_t id = Next<Welcome>(*lost).worker;
  ASSERT_EQ(desk_->Newcomers().size(), 1u);
  desk_->Drop(id, "of the test");
  desk_->TellLink(id, LinkUp{"link", {0}});  // before what it is told is sent
  EXPECT_TRUE(desk_->Linked().empty());
  EXPECT_EQ(Next<Refused>(*lost).message, "of the test");
  auto worker = Join();
  ThrowIfError(desk_->Publish(1, 5, desk_->Steps()));
  for (const Assign& order : Assigned(*worker, 2 * kPositions))
    ThrowIfError(worker->Send(DoneOf(order)));
  ExpectAll();
}

TEST_F(DeskTest, WhatNoWorkerCanDoEndsTheRun) {
  Start();
  Open();
  auto worker = Connect();
  ThrowIfError(worker->Send(Failed{StatusCode::kConfig, "the cache is too small"}));
  EXPECT_THROW(desk_->Wait(Stream::kTrain, For::kBatch, kLong), Error);
}

// A machine without the program that scores, or without room for a thread, is not the run's fault.
TEST_F(DeskTest, WhatAWorkerLacksThatOthersHaveIsItsOwn) {
  Start();
  Open();
  ThrowIfError(desk_->Publish(1, 5, desk_->Steps()));
  auto worker = Join();
  for (const StatusCode code : {StatusCode::kConfig, StatusCode::kDataLoss}) {
    auto other = Connect();
    ThrowIfError(other->Send(Failed{code, "start reward.command: not found"}));
    EXPECT_EQ(Next<Refused>(*other).code, code);
  }
  for (const Assign& order : Assigned(*worker, 2 * kPositions))
    ThrowIfError(worker->Send(DoneOf(order)));
  ExpectAll();
  // What it finds in a sample is the sample's.
  ThrowIfError(worker->Send(Failed{StatusCode::kConfig, "the reward has no such key"}));
  EXPECT_THROW(desk_->Wait(Stream::kTrain, For::kBatch, kLong), Error);
}

// It is read on the desk's thread, which nothing may end.
TEST_F(DeskTest, APromptThatCannotBeReadEndsTheRun) {
  Start();
  StreamOptions options;
  options.protocol.batch = options.protocol.end = 1;
  options.protocol.samples = {0};
  options.prompt = [](int64_t) -> rl::Prompt {
    throw Error(StatusCode::kIo, "the prompts of the test");
  };
  ThrowIfError(desk_->Open(Stream::kTrain, std::move(options), Ledger()));
  ThrowIfError(desk_->Publish(1, 5, desk_->Steps()));
  auto worker = Join();
  try {
    desk_->Wait(Stream::kTrain, For::kBatch, kLong);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kIo);
    EXPECT_THAT(error.what(), HasSubstr("the prompts of the test"));
  }
}

TEST_F(DeskTest, BytesOfNobodyDoNoHarm) {
  Start();
  Open();
  for (const std::string& bytes : {std::string("GET / HTTP/1.0\r\n\r\n"),
                                   std::string(1 << 20, '\xFF'), std::string(1, '\0')}) {
    parallel::Socket socket =
        ValueOrThrow(parallel::ConnectOnce("127.0.0.1", desk_->port(), milliseconds(5000)));
    (void)send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  auto worker = Join();
  ThrowIfError(desk_->Publish(1, 5, desk_->Steps()));
  for (const Assign& order : Assigned(*worker, 2 * kPositions))
    ThrowIfError(worker->Send(DoneOf(order)));
  ExpectAll();
}

}  // namespace
}  // namespace keel::trainer::desk
