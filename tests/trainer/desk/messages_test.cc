#include "trainer/desk/messages.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace keel::trainer::desk {
namespace {

rl::Prompt SomePrompt() {
  rl::Prompt prompt;
  prompt.id = 7;
  prompt.tokens = {1, 2, 3};
  prompt.text = "2 + 2 =\0?";
  prompt.data_source = "copy";
  prompt.ground_truth = {{"answer", 4}};
  prompt.extra_info = {{"index", 3}, {"float", 0.5}};
  return prompt;
}

std::vector<Message> OneOfEach() {
  const Partial partial{{4, 5, 6}, {-0.5F, 0.0F, -2.0F}, {{0, 1}, {2, 3}}, {{1, 2}}, "{}"};
  return {Hello{"w", {2, 3}, 64, {{"trainer.seed", "1"}, {"program", "keel"}}},
          Heartbeat{5000000, 1000000, 77, 12},
          Serving{3, 0xFFFFFFFFFFFFFFFFU},
          Progress{Stream::kValidation, 9, 2, partial},
          Back{Stream::kTrain, 9},
          Done{Stream::kTrain, 9, {{0, 1}}, "bytes", "text"},
          Failed{StatusCode::kConfig, "too long"},
          Join{4},
          Ask{},
          Welcome{1},
          Joined{6, "{}"},
          Refused{StatusCode::kUnavailable, "given up"},
          LinkUp{"link_1", {0, 1}},
          Push{4},
          Assign{Stream::kTrain, 11, {int64_t{1} << 62, -1}, true, SomePrompt(), partial, 17},
          Conclude{Stream::kValidation, 12},
          Bye{true},
          Told{"{}"}};
}

TEST(MessagesTest, EachComesBackAsItWas) {
  const std::vector<Message> all = OneOfEach();
  ASSERT_EQ(all.size(), std::variant_size_v<Message>);
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(all[i].index(), i) << "one of each, in order";
    const std::string bytes = Encode(all[i]);
    const Result<Message> back = Decode(bytes);
    ASSERT_TRUE(back.ok()) << i;
    EXPECT_EQ(back->index(), i);
    EXPECT_EQ(Encode(*back), bytes);
  }
  const auto assign = std::get<Assign>(ValueOrThrow(Decode(Encode(all[14]))));
  EXPECT_EQ(assign.id, (SampleId{int64_t{1} << 62, -1}));
  EXPECT_EQ(assign.until, 17);
  EXPECT_EQ(assign.prompt.ground_truth, SomePrompt().ground_truth);
  EXPECT_EQ(assign.prompt.extra_info, SomePrompt().extra_info);
  EXPECT_EQ(assign.prompt.text, SomePrompt().text);
  EXPECT_EQ(assign.so_far, std::get<Progress>(all[3]).more);
}

TEST(MessagesTest, TornOnesAreNone) {
  for (const Message& message : OneOfEach()) {
    const std::string bytes = Encode(message);
    for (size_t size = 0; size < bytes.size(); ++size)
      EXPECT_FALSE(Decode(std::string_view(bytes).substr(0, size)).ok()) << message.index();
    EXPECT_FALSE(Decode(bytes + "x").ok());
  }
  EXPECT_FALSE(Decode("\xFF").ok());
}

TEST(MessagesTest, AByteThatIsNoBoolIsNone) {
  std::string bytes = Encode(Bye{true});
  ASSERT_EQ(bytes.back(), 1);
  bytes.back() = 2;
  EXPECT_FALSE(Decode(bytes).ok());
}

// Whatever comes is an error or a message, and takes no more memory than it is long.
TEST(MessagesTest, DamagedOnesDoNoHarm) {
  std::mt19937 random(3);  // NOLINT: the same every time
  const std::vector<Message> all = OneOfEach();
  for (int n = 0; n < 20'000; ++n) {
    std::string bytes = Encode(all[random() % all.size()]);
    for (uint32_t flips = 1 + random() % 4; flips > 0; --flips)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    const Result<Message> back = Decode(bytes);
    if (back.ok()) (void)Encode(*back);
  }
}

}  // namespace
}  // namespace keel::trainer::desk
