#include "trainer/foreign/shell_script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>

namespace keel::trainer::foreign {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ShellContext Context(std::vector<std::string> arguments = {}) {
  return {std::move(arguments), [](const std::string& name) -> std::optional<std::string> {
            if (name == "HOME") return "/home/u";
            if (name == "PWD") return "/work";
            return std::nullopt;
          }};
}

// The words that `launch` is called with, and what is not known of them.
struct Launched {
  std::vector<std::string> words, not_known;
};
Launched ReadLaunch(const std::string& script, const std::vector<std::string>& arguments = {}) {
  const auto read = ReadShell({"run.sh", script}, Context(arguments));
  EXPECT_TRUE(read.ok()) << read.status().ToString();
  Launched launched;
  if (!read.ok()) return launched;
  for (const ShellCommand& command : read.value().commands) {
    if (command.words[0].text != "launch") continue;
    for (size_t i = 1; i < command.words.size(); ++i) {
      launched.words.push_back(command.words[i].text);
      for (const std::string& why : command.words[i].not_known) launched.not_known.push_back(why);
    }
  }
  return launched;
}

// What bash calls it with.
std::vector<std::string> LaunchedByBash(const std::string& script) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("shell_script_test." + std::to_string(getpid()));
  std::ofstream(path) << "launch() { printf '%s\\n' \"$@\"; }\n" << script << "\n";
  const std::string command =
      "env -i HOME=/home/u PATH=\"$PATH\" bash " + path.string() + " one 'two words'";
  std::vector<std::string> words;
  std::FILE* pipe = popen(command.c_str(), "r");
  std::string line;
  for (int c = 0; pipe != nullptr && (c = std::fgetc(pipe)) != EOF;) {
    if (c == '\n') {
      words.push_back(line);
      line.clear();
    } else {
      line += static_cast<char>(c);
    }
  }
  EXPECT_EQ(pipe != nullptr ? pclose(pipe) : -1, 0) << script;
  std::filesystem::remove(path);
  return words;
}

TEST(ShellScript, WordsAreThoseThatBashMakes) {
  const char* scripts[] = {
      "launch a.b=c +x=y ~z 'q r' \"s t\" u\\ v",
      "launch a=1 \\\n  b=2 \\\n  c=3 # and no more",
      "# launch no\nX=5; Y=\"$X$X\"\nlaunch a=$X b=${Y} c='$X' d=\"${X}_y\" e=\\$X",
      "launch a=${X:-7} b=${X:-$HOME/d} c=${X-} d=\"${X:-q r}\" e=${X:+n}",
      "X=; launch a=${X:-7} b=${X-7} c=${X:+n}; X=2; launch a=${X:-7} b=${X:+n}",
      "DATA=(\n  a=1  # first\n  'b=2 3'\n  c=$HOME\n)\nDATA+=(d=4)\nlaunch \"${DATA[@]}\" z",
      "E=()\nlaunch \"${E[@]}\" \"$@\" z",
      "ARGS=\"a=1   b=2\"; launch $ARGS \"$ARGS\" x$ARGS",
      "A=(a 'b c'); launch ${A[@]}x $@",
      "N=4; M=$((N * (2 + 3) - 1)); launch n=$M m=$((M%4)) k=$(( ${N} / 3 )) l=$((-N))",
      "train=\"['$HOME/a', '$HOME/b']\"\nlaunch data.train_files=\"$train\" "
      "l='[\"console\",\"w\"]' "
      "m=['a','b']",
      "export A=1 B='2 3'\nlaunch $A \"$B\"",
      "A=1 launch x=1 > /dev/stdout 2>&1",
      "launch first=$1 second=\"$2\"; shift; launch now=\"$1\" \"$@\"",
      "cat > /dev/null <<EOF\nlaunch not this\nEOF\nlaunch this",
      "if [ -n \"$HOME\" ]; then\n  launch inside\nfi",
      "run() {\n  launch \"a=b\"\n}\nrun",
      "set -x; launch a && launch b; true | cat\nlaunch \"tab\tx\" \"a\\\"b\\\\c\\$d\"",
      "launch ${X:-a b} \"${X:-\"in quotes\"}\" '' \"\" end",
      "launch 'it'\\''s' \"mixed\"'quotes'$HOME",
  };
  for (const char* script : scripts) {
    const Launched launched = ReadLaunch(script, {"one", "two words"});
    EXPECT_EQ(launched.words, LaunchedByBash(script)) << script;
    EXPECT_THAT(launched.not_known, IsEmpty()) << script;
  }
}

TEST(ShellScript, WhatOnlyAShellKnowsIsNamed) {
  EXPECT_THAT(ReadLaunch("launch d=$(date +%F)/x").not_known,
              ElementsAre(HasSubstr("$(date +%F)")));
  EXPECT_THAT(ReadLaunch("launch d=`date`").not_known, ElementsAre(HasSubstr("`date`")));
  EXPECT_THAT(ReadLaunch("launch $NOWHERE").not_known, ElementsAre(HasSubstr("$NOWHERE")));
  EXPECT_THAT(ReadLaunch("launch a=$3").not_known, ElementsAre(HasSubstr("argument")));
  EXPECT_THAT(ReadLaunch("X=$(nproc); launch n=$((X * 2))").not_known,
              ElementsAre(HasSubstr("not all known numbers")));
  EXPECT_THAT(ReadLaunch("launch a=${HOME%/*}").not_known, ElementsAre(HasSubstr("work out")));
  EXPECT_THAT(ReadLaunch("launch n=$((1/0)) m=$((9999999999999999999))").not_known.size(), 2u);
  EXPECT_THAT(ReadLaunch(". ./env.sh\nlaunch a=$FROM").not_known, ElementsAre(HasSubstr("line 1")));
  EXPECT_THAT(ReadLaunch("launch d=$(pwd)/x").words, ElementsAre("d=/work/x"));
}

TEST(ShellScript, AVariableThatIsSetUnderAConditionIsNotKnown) {
  for (const char* script :
       {"X=1\nif [ \"$Y\" = a ]; then\n  X=2\nfi\nlaunch x=$X",
        "for X in 1 2; do\n  launch x=$X\ndone", "while read X; do launch x=$X; done",
        "f() {\n  X=2\n}\nf\nlaunch x=$X", "case $Y in\n  a) X=2 ;;\nesac\nlaunch x=${X:-1}",
        "X=1\n[ \"$Y\" = a ] && X=2\nlaunch x=$X",
        "X=1; [[ -n $HOME && -n $Y ]] && X=2; launch x=$X",
        "X=1\ntest -n \"$Y\" &&\n  X=2\nlaunch x=$X", "X=1\ncd /tmp || X=2\nlaunch x=$X",
        "X=1\n(( 1 > 2 )) && X=2\nlaunch x=$X"}) {
    EXPECT_THAT(ReadLaunch(script).not_known, ElementsAre(HasSubstr("under a condition")))
        << script;
  }
}

TEST(ShellScript, WhatFollowsACommandThatDoesItsWorkIsKnown) {
  for (const char* script :
       {"cd /tmp && X=2\nlaunch x=$X", "export Y=1 && export X=2 && launch x=$X",
        "[ a ] && echo b\nX=2\nlaunch x=$X", "[ a ]; X=2; launch x=$X"}) {
    const Launched launched = ReadLaunch(script);
    EXPECT_THAT(launched.words, ElementsAre("x=2")) << script;
    EXPECT_THAT(launched.not_known, IsEmpty()) << script;
  }
}

TEST(ShellScript, AnOpenQuoteOrBracketIsRefusedWithItsLine) {
  for (const char* script : {"x\nlaunch 'a\n", "x\nlaunch \"a\n", "x\nA=(b\n", "x\nlaunch ${A\n",
                             "x\nlaunch $((1\n", "x\nlaunch $(a\n"}) {
    const auto read = ReadShell({"run.sh", script}, Context());
    EXPECT_EQ(read.status().code(), StatusCode::kConfig) << script;
    EXPECT_THAT(read.status().message(), HasSubstr("run.sh:2:")) << script;
  }
}

TEST(ShellScript, NoTextIsTooOdd) {
  // Every prefix of a script with everything in it is read or refused; none hangs or crashes.
  const std::string all =
      "A=(a \"b $X\" ${Y:-'c'}) ; f() { launch \"${A[@]}\" $((1+(2*3))) `x` $(y \"z\") <<-E >o "
      "2>&1\n"
      "\tE\n}; if x; then ${A[1]} $# $? ${#A} ${A/b/c} \\\n fi; export B=\"\\\"${C:-${D:-e}}\\\"\" "
      "& |";
  for (size_t n = 0; n <= all.size(); ++n)
    (void)ReadShell({"run.sh", all.substr(0, n)}, Context({"x"}));
}

}  // namespace
}  // namespace keel::trainer::foreign
