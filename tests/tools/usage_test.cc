#include "tools/usage.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace keel::tools {
namespace {

std::string Answer(std::vector<const char*> arguments) {
  CLI::App app("", "keel");
  app.require_subcommand(1);
  std::string text;
  CLI::App* train = app.add_subcommand("train");
  train->add_option("CONFIG", text)->required();
  CLI::App* generate = app.add_subcommand("generate");
  generate->add_option("--model", text)->required();
  generate->add_option("--max-new-tokens", text);
  CLI::App* ckpt = app.add_subcommand("ckpt");
  ckpt->require_subcommand(1);
  ckpt->add_subcommand("ls");
  ckpt->add_subcommand("inspect");
  arguments.insert(arguments.begin(), "/usr/bin/keel");
  const auto count = static_cast<int>(arguments.size());
  try {
    app.parse(count, arguments.data());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0 && !NamesNoCommand(app, count, arguments.data()))
      return "helped";
    return ExplainUsage(app, count, arguments.data(), error.what());
  }
  return "understood";
}

TEST(Usage, AMistypedCommandIsRepeatedWithTheClosest) {
  EXPECT_EQ(Answer({"tarin", "a.yaml"}),
            "keel: unknown command \"tarin\"\ndid you mean keel train?\n"
            "keel --help lists the commands\n");
  EXPECT_EQ(Answer({"gen"}),
            "keel: unknown command \"gen\"\ndid you mean keel generate?\n"
            "keel --help lists the commands\n");
  EXPECT_EQ(Answer({"ckpt", "inspct", "dir"}),
            "keel ckpt: unknown command \"inspct\"\ndid you mean keel ckpt inspect?\n"
            "keel ckpt --help lists the commands\n");
}

TEST(Usage, HelpForACommandThatThereIsNot) {
  EXPECT_EQ(Answer({"tarin", "--help"}),
            "keel: unknown command \"tarin\"\ndid you mean keel train?\n"
            "keel --help lists the commands\n");
  for (const auto& arguments : {std::vector<const char*>{"--help"},
                                {"train", "--help"},
                                {"ckpt", "ls", "--help"},
                                {"train", "a.yaml", "--help"}}) {
    EXPECT_EQ(Answer(arguments), "helped");
  }
}

TEST(Usage, WithoutAnythingCloseAllAreListed) {
  EXPECT_EQ(Answer({"serve"}),
            "keel: unknown command \"serve\"\nthere are ckpt, generate, train\n"
            "keel --help lists the commands\n");
  EXPECT_EQ(Answer({"\x1b[31m"}),
            "keel: unknown command \"\\x1b[31m\"\nthere are ckpt, generate, train\n"
            "keel --help lists the commands\n");
}

TEST(Usage, AMistypedOptionIsRepeatedWithTheClosest) {
  EXPECT_EQ(Answer({"generate", "--modle", "dir"}),
            "keel generate: unknown option --modle\ndid you mean --model?\n"
            "keel generate --help shows how it is used\n");
  EXPECT_EQ(Answer({"generate", "--model", "dir", "--max-new-token=3"}),
            "keel generate: unknown option --max-new-token\ndid you mean --max-new-tokens?\n"
            "keel generate --help shows how it is used\n");
  EXPECT_EQ(Answer({"--verbose"}),
            "keel: unknown option --verbose\nkeel --help lists the commands\n");
}

TEST(Usage, EverythingElseIsTheParsersWord) {
  EXPECT_EQ(Answer({"train"}),
            "keel train: CONFIG is required\nkeel train --help shows how it is used\n");
  EXPECT_EQ(Answer({}), "keel: A subcommand is required\nkeel --help lists the commands\n");
  EXPECT_EQ(Answer({"ckpt"}),
            "keel ckpt: A subcommand is required\nkeel ckpt --help lists the commands\n");
  EXPECT_EQ(Answer({"generate", "--model", "dir"}), "understood");
}

}  // namespace
}  // namespace keel::tools
