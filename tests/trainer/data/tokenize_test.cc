// Shards hold what rows in memory would, whoever makes them, in how many parts, and after what end.
#include "trainer/data/tokenize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string_view>
#include <thread>

#include "model/tokenizer/tokenizer_kind.h"
#include "tests/model/tokenizer/numbers_tokenizer.h"
#include "tests/trainer/data/tokens/scratch_folder.h"
#include "trainer/data/dataset.h"
#include "trainer/data/rows/chat_rules.h"

namespace keel::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TokenizeTest : public ::testing::Test {
 protected:
  TokenizeTest() {
    options_.plan.rows.rules = *bytes_;
    options_.plan.vocab_size = 259;
    options_.plan.part_bytes = 1000;
    options_.deadline_seconds = 60;
  }
  static std::string Rows(int count) {
    std::string rows = "\xEF\xBB\xBF";
    for (int i = 0; i < count; ++i) {
      const std::string text(static_cast<size_t>(1 + i * 7 % 90), static_cast<char>('a' + i % 26));
      rows += i % 3 == 0   ? "{\"prompt\":\"p" + text + "\",\"response\":\"r\"}\n"
              : i % 3 == 1 ? "{\"text\":\"" + text + "\",\"id\":" + std::to_string(i) + "}\r\n"
                           : "{\"input_ids\":[1,2,3],\"labels\":[-100,2,3]}\n\n";
    }
    return rows;
  }
  DatasetOptions SetOptions(bool sft) const {
    DatasetOptions options;
    options.sft = sft;
    options.max_length = 64;
    options.truncation = Truncation::kLeft;
    options.vocab_size = 259;
    return options;
  }
  static std::vector<std::vector<int32_t>> Tokens(const Dataset& data) {
    std::vector<std::vector<int32_t>> all;
    for (int64_t i = 0; i < data.size(); ++i) {
      const Sample sample = data.Get(i);
      all.push_back(sample.tokens);
      all.emplace_back(sample.learn.begin() + 1, sample.learn.end());  // the first is no target
      EXPECT_EQ(sample.id, i);
      EXPECT_EQ(data.targets(i), sample.targets());
    }
    return all;
  }
  Result<ShardFolderIndex> Make(const std::vector<std::string>& files, const std::string& name) {
    KEEL_ASSIGN_OR_RETURN(const TokenPlan plan, MakeTokenPlan(files, options_.plan));
    return Tokenize(plan, folder_.Path(name), options_);
  }

  ScratchFolder folder_;
  std::unique_ptr<model::Tokenizer> bytes_ = model::MakeTokenizer(model::TokenizerKind::kBytes);
  TokenizeOptions options_;
};

TEST_F(TokenizeTest, ShardsGiveTheSamplesThatMemoryGives) {
  const std::string rows = folder_.Write("rows.jsonl", Rows(300));
  const std::string text = folder_.Write("text.txt", "plain text\nof lines\n");
  options_.threads = 3;
  const auto index = ValueOrThrow(Make({rows, text}, "tokens"));
  EXPECT_GT(index.shards.size(), 10u);
  EXPECT_EQ(index.rows, 301);
  ASSERT_EQ(index.warnings.size(), 1u);
  EXPECT_THAT(index.warnings[0], HasSubstr("rows.jsonl: keys that nothing reads, with their number "
                                           "in 300 rows: id (100)"));
  for (const bool sft : {false, true}) {
    const Dataset memory = ValueOrThrow(Dataset::Load({rows, text}, SetOptions(sft), *bytes_));
    const Dataset shards =
        ValueOrThrow(Dataset::Load({folder_.Path("tokens")}, SetOptions(sft), *bytes_));
    EXPECT_EQ(Tokens(shards), Tokens(memory));
    EXPECT_EQ(shards.skipped_rows(), memory.skipped_rows());
    DatasetOptions cached = SetOptions(sft);
    cached.cache.folder = folder_.Path("cache");
    const Dataset kept = ValueOrThrow(Dataset::Load({rows, text}, cached, *bytes_));
    EXPECT_EQ(Tokens(kept), Tokens(memory));
    // The second time nothing is tokenized, and the set is the same.
    const Dataset again = ValueOrThrow(Dataset::Load({rows, text}, cached, *bytes_));
    EXPECT_EQ(again.digest(), kept.digest());
  }
}

// What was made of its old and its new content would be taken for the old file's ever after.
TEST_F(TokenizeTest, AFileThatIsWrittenOverMeanwhileMakesNoShards) {
  const std::string was = Rows(300);
  const std::string rows = folder_.Write("rows.jsonl", was);
  const auto time = std::filesystem::last_write_time(rows);
  std::string now = was;
  // Letters that stand in no key.
  for (char& c : now)
    if (std::string_view("cfghjkqvwy").find(c) != std::string_view::npos) c = 'z';
  options_.progress = [&](const TokenizeProgress& progress) {
    if (progress.parts > 1) return;
    folder_.Write("rows.jsonl", now);
    std::filesystem::last_write_time(rows, time + std::chrono::seconds(1));
  };
  const auto made = Make({rows}, "tokens");
  EXPECT_EQ(made.status().code(), StatusCode::kInvalidData);
  EXPECT_THAT(made.status().message(), HasSubstr("rows.jsonl: was changed while it was read"));
  // The file is put back.
  folder_.Write("rows.jsonl", was);
  std::filesystem::last_write_time(rows, time);
  options_.progress = {};
  ValueOrThrow(Make({rows}, "tokens"));
  const Dataset memory = ValueOrThrow(Dataset::Load({rows}, SetOptions(true), *bytes_));
  const Dataset shards =
      ValueOrThrow(Dataset::Load({folder_.Path("tokens")}, SetOptions(true), *bytes_));
  EXPECT_EQ(Tokens(shards), Tokens(memory));
}

TEST_F(TokenizeTest, RecordsAreNoTokensToTrainOn) {
  const std::string rows = folder_.Write("rows.jsonl", "{}\n");
  const RecordRule rule{{{"test", 1}}, [](const Json&, const RowContext&, WireWriter* record) {
                          record->Raw("x");
                          return Result<bool>(true);
                        }};
  options_.plan.records = &rule;
  EXPECT_EQ(ValueOrThrow(Make({rows}, "records")).id_bytes, 1u);
  const auto data = Dataset::Load({folder_.Path("records")}, SetOptions(true), *bytes_);
  EXPECT_THAT(data.status().message(), HasSubstr("records: holds rows of another task"));
}

TEST_F(TokenizeTest, SplittingShardsKeepsEverySampleOnce) {
  const std::string rows = folder_.Write("rows.jsonl", Rows(300));
  ValueOrThrow(Make({rows}, "tokens"));
  Dataset data = ValueOrThrow(Dataset::Load({folder_.Path("tokens")}, SetOptions(true), *bytes_));
  Dataset memory = ValueOrThrow(Dataset::Load({rows}, SetOptions(true), *bytes_));
  const int64_t all = data.size();
  const Dataset apart = data.SplitOff(0.25, 3), memory_apart = memory.SplitOff(0.25, 3);
  EXPECT_EQ(data.size() + apart.size(), all);
  ASSERT_EQ(apart.size(), memory_apart.size());
  for (int64_t i = 0; i < apart.size(); ++i) EXPECT_EQ(apart.Get(i).id, memory_apart.Get(i).id);
  EXPECT_NE(data.digest(), apart.digest());
}

TEST_F(TokenizeTest, ProcessesShareTheWorkAndAKilledOnesPartIsMadeAgain) {
  const std::string rows = folder_.Write("rows.jsonl", Rows(20000));
  options_.plan.part_bytes = 20000;
  const TokenPlan plan = ValueOrThrow(MakeTokenPlan({rows}, options_.plan));
  ASSERT_GT(plan.parts.size(), 20u);
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      // The first is killed at its fifth part, with a shard half written.
      TokenizeOptions mine = options_;
      if (i == 0) {
        mine.progress = [](const TokenizeProgress& progress) {
          if (progress.parts == 5) ::raise(SIGKILL);
        };
      }
      const auto made = Tokenize(plan, folder_.Path("tokens"), mine);
      ::_exit(made.ok() ? 0 : 1);
    }
    children.push_back(child);
  }
  for (size_t i = 0; i < children.size(); ++i) {
    int status = 0;
    ASSERT_EQ(::waitpid(children[i], &status, 0), children[i]);
    EXPECT_TRUE(WIFSIGNALED(status) ? i == 0 : WEXITSTATUS(status) == 0) << i;
  }
  const ShardFolder made = ValueOrThrow(ShardFolder::Open(folder_.Path("tokens")));
  const auto alone = ValueOrThrow(Make({rows}, "alone"));
  EXPECT_EQ(made.index.ToJson(), alone.ToJson());
  for (const auto& shard : made.shards) ThrowIfError(shard->Verify());
}

TEST_F(TokenizeTest, WhatAKilledProcessLeftIsTakenUp) {
  const std::string rows = folder_.Write("rows.jsonl", Rows(2000));
  const TokenPlan plan = ValueOrThrow(MakeTokenPlan({rows}, options_.plan));
  const pid_t child = ::fork();
  if (child == 0) {
    TokenizeOptions mine = options_;
    mine.progress = [](const TokenizeProgress& progress) {
      if (progress.parts == 3) ::raise(SIGKILL);
    };
    (void)Tokenize(plan, folder_.Path("tokens"), mine);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_THAT(ShardFolder::Open(folder_.Path("tokens")).status().message(),
              HasSubstr("not finished"));
  folder_.Write("tokens/.tmp-part-00004", "half a shard");
  const auto before = std::filesystem::last_write_time(folder_.Path("tokens/part-00001.tokens"));
  ValueOrThrow(Tokenize(plan, folder_.Path("tokens"), options_));
  EXPECT_EQ(std::filesystem::last_write_time(folder_.Path("tokens/part-00001.tokens")), before);
  EXPECT_EQ(ValueOrThrow(ShardFolder::Open(folder_.Path("tokens"))).index.rows, 2000);
}

TEST_F(TokenizeTest, APlanThatWasHalfWrittenIsWrittenAgain) {
  const std::string rows = folder_.Write("rows.jsonl", Rows(3));
  const TokenPlan plan = ValueOrThrow(MakeTokenPlan({rows}, options_.plan));
  std::filesystem::create_directory(folder_.Path("tokens"));
  folder_.Write("tokens/plan.json.tmp", "{\"for");
  ValueOrThrow(Tokenize(plan, folder_.Path("tokens"), options_));
  EXPECT_EQ(ValueOrThrow(ShardFolder::Open(folder_.Path("tokens"))).index.rows, 3);
  EXPECT_FALSE(std::filesystem::exists(folder_.Path("tokens/plan.json.tmp")));
}

TEST_F(TokenizeTest, AnotherHoldersPartIsWaitedForUntilTheDeadline) {
  const std::string rows = folder_.Write("rows.jsonl", Rows(30));
  std::filesystem::create_directory(folder_.Path("tokens"));
  const TokenPlan plan = ValueOrThrow(MakeTokenPlan({rows}, options_.plan));
  folder_.Write("tokens/plan.json", plan.document.dump(1) + "\n");
  auto files = ValueOrThrow(OpenPosixFileSystem(folder_.Path("tokens"), false));
  auto lock = ValueOrThrow(files->Lock(".lock-00000", "the test"));
  options_.deadline_seconds = 0.3;
  const auto late = Tokenize(plan, folder_.Path("tokens"), options_);
  EXPECT_EQ(late.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(late.status().message(), HasSubstr("part-00000.tokens"));
  options_.deadline_seconds = 60;
  std::thread holder([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    lock.reset();
  });
  EXPECT_TRUE(Tokenize(plan, folder_.Path("tokens"), options_).ok());
  holder.join();
}

TEST_F(TokenizeTest, AnotherPlanIsAnotherFolders) {
  const std::string rows = folder_.Write("rows.jsonl", Rows(30));
  ValueOrThrow(Make({rows}, "tokens"));
  ValueOrThrow(Make({rows}, "tokens"));
  options_.plan.rows.keys.text = "content";
  EXPECT_EQ(Make({rows}, "tokens").status().code(), StatusCode::kAlreadyExists);
  options_.plan.rows.keys.text = "text";
  folder_.Write("rows.jsonl", Rows(31));
  EXPECT_EQ(Make({rows}, "tokens").status().code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(Make({rows}, "").status().message(), HasSubstr("no folder of token shards"));
}

// A lock's file stayed in it.
TEST_F(TokenizeTest, AFolderThatIsRefusedIsLeftAsItWas) {
  const std::string rows = folder_.Write("rows.jsonl", Rows(3));
  const auto names = [&] {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.Path("other")))
      all.push_back(entry.path().filename());
    std::sort(all.begin(), all.end());
    return all;
  };
  std::filesystem::create_directory(folder_.Path("other"));
  folder_.Write("other/thesis.tex", "x");
  EXPECT_EQ(Make({rows}, "other").status().code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(names(), ElementsAre("thesis.tex"));
  folder_.Write("other/plan.json", "{}");  // of another program
  EXPECT_EQ(Make({rows}, "other").status().code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(names(), ElementsAre("plan.json", "thesis.tex"));
  // The file of who works there, or has, is his.
  folder_.Write("other/.lock", "");
  EXPECT_EQ(Make({rows}, "other").status().code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(names(), ElementsAre(".lock", "plan.json", "thesis.tex"));
}

TEST_F(TokenizeTest, ABadRowIsNamedByItsLineWhateverThePart) {
  const std::string good = Rows(200);
  const auto lines = std::count(good.begin(), good.end(), '\n');
  const std::string rows = folder_.Write("rows.jsonl", good + "{\"text\":\n" + Rows(1).substr(3));
  const auto made = Make({rows}, "tokens");
  EXPECT_EQ(made.status().code(), StatusCode::kInvalidData);
  EXPECT_THAT(made.status().message(), HasSubstr("rows.jsonl:" + std::to_string(lines + 1) + ":"));
  options_.plan.vocab_size = 258;
  const std::string large = folder_.Write("large.jsonl", good + "{\"input_ids\":[1,258]}\n");
  EXPECT_THAT(Make({large}, "large").status().message(),
              HasSubstr("large.jsonl:" + std::to_string(lines + 1) + ": token 258"));
}

TEST_F(TokenizeTest, ShardsOfAnotherTokenizerOrVocabularyAreRefused) {
  const std::string rows = folder_.Write("rows.jsonl", Rows(30));
  const auto index = ValueOrThrow(Make({rows}, "tokens"));
  DatasetOptions options = SetOptions(false);
  options.vocab_size = 200;
  EXPECT_THAT(Dataset::Load({folder_.Path("tokens")}, options, *bytes_).status().message(),
              HasSubstr("token 257 is outside the model's vocabulary of 200"));

  const model::NumbersTokenizer other(259);
  const auto refused = Dataset::Load({folder_.Path("tokens")}, SetOptions(false), other);
  EXPECT_EQ(refused.status().code(), StatusCode::kConfig);
  EXPECT_THAT(refused.status().message(), HasSubstr("made by another tokenizer"));
  // A run without one takes ids as they are.
  EXPECT_TRUE(Dataset::Load({folder_.Path("tokens")}, SetOptions(false), TextRules()).ok());
}

// data.train_on of a run did nothing to shards, without a word.
TEST_F(TokenizeTest, ShardsOfAnotherTemplateAreSpokenOf) {
  const std::string rows = folder_.Write("rows.jsonl", R"({"prompt":"p","response":"r"})");
  ValueOrThrow(Make({rows}, "tokens"));
  TextRules last(*bytes_);
  ChatRules rules = *ChatMlRules();
  rules.train_on = TrainOn::kLast;
  last.chat = std::make_shared<const ChatRules>(std::move(rules));
  const auto warnings = [&](bool sft, const TextRules& of) {
    return ValueOrThrow(Dataset::Load({folder_.Path("tokens")}, SetOptions(sft), of)).warnings();
  };
  // Shards do not say whether they hold any: here they do not.
  EXPECT_THAT(warnings(true, last),
              ElementsAre(AllOf(HasSubstr("conversations in them, if there are any"),
                                HasSubstr("data.train_on of this run"))));
  EXPECT_TRUE(warnings(true, *bytes_).empty());
  EXPECT_TRUE(warnings(false, last).empty());  // pre-training learns all
}

TEST_F(TokenizeTest, SourcesFollowEachOtherAndAreMixedByWeight) {
  const std::string a = folder_.Write("a.jsonl", Rows(40)), b = folder_.Write("b.jsonl", Rows(90));
  ValueOrThrow(Make({b}, "b.tokens"));
  const Dataset data = ValueOrThrow(
      Dataset::LoadSources({{a, 1}, {folder_.Path("b.tokens"), 3}}, SetOptions(true), *bytes_));
  ASSERT_EQ(data.mixture().size(), 2u);
  const int64_t first = data.mixture()[0].size;
  const Dataset alone = ValueOrThrow(Dataset::Load({b}, SetOptions(true), *bytes_));
  ASSERT_EQ(data.size(), first + alone.size());
  for (int64_t i = 0; i < alone.size(); ++i)
    EXPECT_EQ(data.Get(first + i).tokens, alone.Get(i).tokens);
  SampleOrder order(data.mixture(), 3, true);
  int64_t of_a = 0;
  for (int64_t k = 0; k < 400; ++k) of_a += order.At(k) < first ? 1 : 0;
  EXPECT_EQ(of_a, 100);
  const Dataset other = ValueOrThrow(
      Dataset::LoadSources({{a, 2}, {folder_.Path("b.tokens"), 3}}, SetOptions(true), *bytes_));
  EXPECT_NE(other.digest(), data.digest());
}

// Peak memory grows by the tables alone, however much is read.
TEST_F(TokenizeTest, ReadingShardsDoesNotHoldThem) {
  const std::string big = folder_.Write("big.bin", std::string(size_t{256} << 20, '\0'));
  const auto resident = [] {
    std::ifstream file("/proc/self/statm");
    int64_t size = 0, pages = 0;
    file >> size >> pages;
    return pages * 4096;
  };
  DatasetOptions options = SetOptions(false);
  options.max_length = 2048;
  options.vocab_size = 1000;
  const int64_t before = resident();
  const Dataset data = ValueOrThrow(Dataset::Load({big}, options, TextRules()));
  int64_t most = 0;
  for (int64_t i = 0; i < data.size(); ++i) {
    data.Get(i * 7919 % data.size());
    if (i % 64 == 0) most = std::max(most, resident() - before);
  }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "NOT TESTED: a sanitizer's own memory is resident, too";
#endif
  EXPECT_LT(most, int64_t{96} << 20);
}

}  // namespace
}  // namespace keel::trainer
