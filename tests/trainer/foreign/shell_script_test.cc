#include "trainer/foreign/shell_script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

namespace keel::trainer::foreign {
namespace {

using testing::AllOf;
using testing::AnyOf;
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
      "set -- 4 3\nlaunch a=$(($1 * 32)) b=$(( ${1}+${2} )) c=$((12 / $2$1)) d=$(( -$1 ))",
      "X=1; Y=2\nlaunch a=$(($X$Y + 1)) b=$((X + ${Y}0)) c=$(( X*Y ))",
      "HOME+=/more\nlaunch a=$HOME",
      "launch a.b=c +x=y ~z 'q r' \"s t\" u\\ v",
      "launch a=1 \\\n  b=2 \\\n  c=3 # and no more",
      "# launch no\nX=5; Y=\"$X$X\"\nlaunch a=$X b=${Y} c='$X' d=\"${X}_y\" e=\\$X",
      "launch a=${X:-7} b=${X:-$HOME/d} c=${X-} d=\"${X:-q r}\" e=${X:+n}",
      "X=; launch a=${X:-7} b=${X-7} c=${X:+n}; X=2; launch a=${X:-7} b=${X:+n}",
      "DATA=(\n  a=1  # first\n  'b=2 3'\n  c=$HOME\n)\nDATA+=(d=4)\nlaunch \"${DATA[@]}\" z",
      "E=()\nlaunch \"${E[@]}\" \"$@\" z",
      "M=a/b//; launch a=$(basename $M) b=$(basename x.y .y) c=\"$(dirname $M)\" d=$(dirname m)",
      "launch $(basename /) $(dirname /) $(dirname /a) $(dirname $(dirname a//b/c)) $(basename .y "
      ".y)",
      "launch \"${@:2}\" z; launch \"${*:2}\" ${@:1} ${@:9} \"${@:9}\" x${@:2}",
      "P=7; launch a=$(expr $P + 3) b=$(expr $P \\* 2) c=$(expr $P - 9) n=$#",
      "ARGS=\"a=1   b=2\"; launch $ARGS \"$ARGS\" x$ARGS",
      "A=(a 'b c'); launch ${A[@]}x $@",
      "N=4; M=$((N * (2 + 3) - 1)); launch n=$M m=$((M%4)) k=$(( ${N} / 3 )) l=$((-N))",
      "train=\"['$HOME/a', '$HOME/b']\"\nlaunch data.train_files=\"$train\" "
      "l='[\"console\",\"w\"]' "
      "m=['a','b']",
      "export A=1 B='2 3'\nlaunch $A \"$B\"",
      "A=1 launch x=1 > /dev/stdout 2>&1",
      "launch first=$1 second=\"$2\"; shift; launch now=\"$1\" \"$@\"",
      "launch \"${@:1}\" ${*:1} \"${*:1}\"; shift; launch \"${@:1}\"",
      "cat > /dev/null <<EOF\nlaunch not this\nEOF\nlaunch this",
      "if [ -n \"$HOME\" ]; then\n  launch inside\nfi",
      "run() {\n  launch \"a=b\"\n}\nrun",
      "set -x; launch a && launch b; true | cat\nlaunch \"tab\tx\" \"a\\\"b\\\\c\\$d\"",
      "launch ${X:-a b} \"${X:-\"in quotes\"}\" '' \"\" end",
      "launch 'it'\\''s' \"mixed\"'quotes'$HOME",
      "A=(--a b --c d); R=(p=\"q ${A[*]}\"); X=${A[*]}; launch \"${R[@]}\" \"x=${A[*]}\" y=\"$*\" "
      "\"$X\" ${A[*]} $*; Y=\"${A[@]}\"; launch \"$Y\"",
      "launch a=x\\\nb c=\\\nd \\\n e",
      "launch a=1 \\\n# c\nb.c=2 || :",
      "launch $'a\\tb' $\"hi $HOME\" e=$'x\\'y'",
      "X='{a:1,b:2}'; launch d=$X {} {a} a{b}c '{x,y}' \"{x,y}\" {a, b}",
      ": \"${N:=5}\" ${M=6}; launch n=$N m=${M:=7} \"${L:=8}\" $L",
      "set -- \"$@\" x=1; launch \"$@\"; set -euo pipefail; set +x; launch $1; set -- y=2; launch "
      "$@ "
      "$1",
      "X=a; X=b true; launch $X; Y=1 true; launch \"y${Y-}\"; X=c > /dev/null; launch $X",
      "X=a; ( X=2; launch $X ); launch $X; f() { :; }; launch $X",
      "X=3; Y=$((X == 3 || X <= 2)); if (( X == 3 )); then :; fi; launch $X",
      "launch a; exit 0\nlaunch b",
      "( exit 1 ); launch a; if false; then exit; fi; launch b",
      // Conditions that follow from the text.
      "X=1; if [ \"$HOME\" = /home/u ]; then X=2; else X=3; launch no; fi; launch $X",
      "X=1; if [ 1 -gt 2 ]; then X=2; elif [[ a == b || -n c ]]; then X=3; else X=4; fi; launch $X",
      "X=1\nif ! [ a = b ]\nthen\n  X=2\nfi\nlaunch $X",
      "X=1; [ a = b ] && X=2 || X=3; launch $X; [ a = a ] && Y=2 || Y=3; launch $Y",
      "X=1; [ a = b ] || X=2; true && X=4$X; false && X=0; false || X=5$X; launch $X",
      "X=a; case \"$X\" in\n  b | c) X=1 ;;\n  [aA]*)\n    X=2\n    ;;\n  *) X=3 ;;\nesac\nlaunch "
      "$X",
      "case x in y) X=1;; (z) X=2;; *) X=3; esac; launch $X",
      "D=gpu E=; A=(); case $D in gpu) A+=(a=1); case ${E} in g) A+=(b=2);; *) if [ -z \"$E\" ]; "
      "then "
      "A+=(c=3); fi;; esac;; npu) A+=(d=4);; esac; launch \"${A[@]}\"",
      "R=0; if [ 1 != 0 ] && [ g = g ] && { [ a = b ] || [ a = a ]; }; then R=1; fi; launch $R",
      "R=0; if [ 1 = 0 ] && { [ a = a ]; }; then R=1; fi; launch $R",
      "X=0 Y=0; [ a = b ] && { X=1; Y=1; }; launch end$X$Y; if [ a = b ]; then if [ a = a ]; then "
      "X=2; fi; fi",
      "if [[ a == b && ( c == c ) ]]; then :; fi; if [[ -z a && -n $HOME ]]; then launch no; fi; "
      "launch yes",
      "IFS=,; A=(1 '2 3'); X='a b,c,,d,'; launch \"${A[*]}\" ${A[*]} \"${A[@]}\" $X \"$X\" \"$*\"",
      "IFS=$'\\n\\t'; X='a b'; launch $X \"$X\" $@",
      "IFS=; X='a b'; A=(1 2); launch $X \"${A[*]}\"; IFS=' '; launch $X",
      "IFS=': '; X=' a : b::c '; launch $X y$X",
      "A=(1 2) X='1,2'; IFS=, true; launch $X; IFS=+; X=${A[*]} Y=${A[@]} Z=$*; launch \"$X\" "
      "\"$Y\" "
      "\"$Z\"",
      "join() { local IFS=,; echo \"$*\"; }\nX='a b'; launch $X \"$*\"; IFS=+\nf() { local IFS=-; "
      "}\n"
      "A=(1 2); launch \"${A[*]}\"",
      "OLD=$IFS; IFS=,; L=1,2; launch $L; IFS=$OLD; X='a b'; launch $X",
      "IFS+=,; X='a,b c'; launch $X",
      "IFS=,; unset IFS; X='a b'; launch $X",
      "declare -i N=8; export -n E=5; launch n=$N e=$E",
      "while IFS= read -r X; do :; done < /dev/null; X='a b'; launch $X",
      "X=1; if [[ $HOME == *\"/u\" && $HOME == /'home'* ]]; then X=2; fi; launch $X",
      "X=1; if false; then X=2; fi; if true; then X=3$X; fi; [ ]  || X=4$X; test -z '' && launch "
      "$X",
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
  EXPECT_THAT(ReadLaunch("launch a=$(expr 7+3) b=$(expr 1 : 2) c=$(basename)").not_known.size(),
              3u);
  EXPECT_THAT(ReadLaunch("launch d=`date`").not_known, ElementsAre(HasSubstr("`date`")));
  EXPECT_THAT(ReadLaunch("launch $NOWHERE").not_known, ElementsAre(HasSubstr("$NOWHERE")));
  EXPECT_THAT(ReadLaunch("launch a=$3").not_known, ElementsAre(HasSubstr("argument")));
  EXPECT_THAT(ReadLaunch("X=$(nproc); launch n=$((X * 2))").not_known,
              ElementsAre(HasSubstr("not all known numbers")));
  EXPECT_THAT(ReadLaunch("launch a=${HOME%/*}").not_known, ElementsAre(HasSubstr("work out")));
  EXPECT_THAT(ReadLaunch("launch n=$((1/0)) m=$((9999999999999999999))").not_known.size(), 2u);
  EXPECT_THAT(ReadLaunch(". ./env.sh\nlaunch a=$FROM").not_known, ElementsAre(HasSubstr("line 1")));
  EXPECT_THAT(ReadLaunch("launch d=$(pwd)/x").words, ElementsAre("d=/work/x"));
  for (const char* script : {"declare -i N=3+4; launch n=$N", "declare -i N\nN=3+4; launch n=$N",
                             "declare -u N=a; launch n=$N", "typeset -ri N=3+4; launch n=$N",
                             "declare -i N=3; N+=2; launch n=$N"}) {
    EXPECT_THAT(ReadLaunch(script).not_known, ElementsAre(HasSubstr("its declaration changes")))
        << script;
  }
  EXPECT_THAT(ReadLaunch("IFS=$(a); X='b c'; launch $X").not_known,
              ElementsAre(HasSubstr("by $IFS")));
  EXPECT_THAT(
      ReadLaunch("launch n=$((010 + 1)) $'\\x41' b={1,2} {p,q}.r c={1..3}").not_known.size(), 5u);
}

TEST(ShellScript, ArgumentsThatTheScriptItselfChangesAreNotKnown) {
  for (const char* script :
       {"f() { launch \"$@\"; }; f a", "f() { launch ${1:-2}; }; f a",
        "function f {\n  launch $1\n}\nf a",
        "while [[ $# -gt 0 ]]; do case $1 in one) shift;; *) break;; esac; done; launch \"$@\"",
        "if [ -f x ]; then set -- b; fi; launch \"$1\""}) {
    EXPECT_THAT(ReadLaunch(script, {"one", "two"}).not_known,
                ElementsAre(AnyOf(HasSubstr("an argument of a function"),
                                  HasSubstr("line 1 sets under a condition"))))
        << script;
  }
  EXPECT_THAT(ReadLaunch("[ -f x ] && shift; launch \"$@\"").not_known, IsEmpty());
}

TEST(ShellScript, AVariableThatIsSetUnderAConditionIsNotKnown) {
  for (const char* script :
       {"X=1\nif [ \"$Y\" = a ]; then\n  X=2\nfi\nlaunch x=$X",
        "for X in 1 2; do\n  launch x=$X\ndone",
        "while read X; do launch x=$X; done",
        "f() {\n  X=2\n}\nf\nlaunch x=$X",
        "case $Y in\n  a) X=2 ;;\nesac\nlaunch x=${X:-1}",
        "X=1\n[ \"$Y\" = a ] && X=2\nlaunch x=$X",
        "X=1; [[ -n $HOME && -n $Y ]] && X=2; launch x=$X",
        "X=1\ntest -n \"$Y\" &&\n  X=2\nlaunch x=$X",
        "X=1\ncd /tmp || X=2\nlaunch x=$X",
        "X=1\n(( 1 > 2 )) && X=2\nlaunch x=$X",
        "X=1; ((X++)); launch x=$X",
        "X=1; ((X = 2)); launch x=$X",
        "X=1; Y=$((X++)); launch x=$X",
        "X=1; : $((X *= 2)); launch x=$X",
        "X=1; let X=2; launch x=$X",
        "X=1; printf -v X 2; launch x=$X",
        "X=(1 2); X[0]=3; launch \"${X[@]}\"",
        "X=1; read -r X <<< 2; launch x=$X",
        "if [ -f a ]; then : ${X:=2}; fi; launch x=$X",
        "X=1; if [ -f a ]; then X=2; fi; launch x=$X",
        "X=1; if grep -q a b; then X=2; fi; launch x=$X",
        "X=1; if [ $Y = a ]; then :; elif [ a = a ]; then X=2; fi; launch x=$X",
        "X=1; case $Y in a) ;; *) X=2;; esac; launch x=$X",
        "function f {\n  X=2\n}\nlaunch x=$X",
        "X=1; [ -n \"$Y\" ] && [ a = a ] && X=2; launch x=$X",
        "X=1; { [ $Y = a ] || [ a = b ]; } && X=2; launch x=$X",
        "X=1; [[ ab == \"a*\" ]] && X=2; launch x=$X",
        "X=1; [[ ab == $'a*' ]] && X=2; launch x=$X",
        "X=1; case ab in 'a?') X=2;; esac; launch x=$X",
        "X=1; case ab in a*) :;;& *b) X=2;; esac; launch x=$X",
        "X=1; case ab in a*) :;& c) X=2;; esac; launch x=$X"}) {
    EXPECT_THAT(ReadLaunch(script).not_known, ElementsAre(HasSubstr("under a condition")))
        << script;
  }
}

TEST(ShellScript, AVariableThatTextOfElsewhereMaySetIsNotKnown) {
  for (const auto& [command, scripts] : std::map<std::string, std::vector<std::string>>{
           {"source",
            {"X=1\nsource env.sh\nlaunch $X", "X=1\n[ -f x ] && source x\nlaunch $X",
             "X=1\nset -a; source x; set +a\nlaunch $X", "X=(1)\nsource x; launch \"${X[@]}\"",
             "X=1\nif [ -n \"$Y\" ]; then source x; fi; launch $X",
             "X=1\nmain() { source x; launch $X; }; main", "\nsource x; launch ${X:-1}",
             "\nf() { source x; }; X=1;\nf; launch $X"}},
           {".", {"X=1\n. $(dirname $0)/env.sh\nlaunch $X"}},
           {"eval", {"X=1\neval \"X=2\"\nlaunch $X", "X=1\neval \"$(cat x)\"; launch $((X + 1))"}},
           {"export", {"export X=1\nexport $(cat x)\nlaunch $X", "X=1\nexport \"X=2\"; launch $X"}},
           {"R=", {"X=1; declare -n R=X\nR=2; launch $X", "X=1; typeset -n R\nR=X; launch $X"}}}) {
    for (const std::string& script : scripts) {
      EXPECT_THAT(ReadLaunch(script).not_known,
                  ElementsAre(AnyOf(AllOf(HasSubstr("runs \"" + command + "\", which may"),
                                          AnyOf(HasSubstr("line 2"), HasSubstr("line 3"))),
                                    HasSubstr("not all known numbers"))))
          << script;
    }
  }
  // What is set behind it, what it cannot reach, and what the environment was given for the import.
  for (const char* script :
       {"X=1; source x; X=/home/u; launch $X", "source x; launch $HOME",
        "X=$HOME; (source x); launch $X", "(source x); launch ${X:-$HOME}",
        "X=$HOME; export -p; launch $X", "X=$HOME; false && source x; launch $X"}) {
    const Launched launched = ReadLaunch(script);
    EXPECT_THAT(launched.words, ElementsAre("/home/u")) << script;
    EXPECT_THAT(launched.not_known, IsEmpty()) << script;
  }
}

// As the parser of arguments that many scripts begin with.
TEST(ShellScript, AFunctionThatIsCalledMaySetWhatWasSetSince) {
  const auto not_known = [](const std::string& script) {
    return ReadLaunch(script, {"--lr", "2"}).not_known;
  };
  const std::string parse =
      "parse() { while [ $# -gt 0 ]; do case $1 in --lr) LR=\"$2\"; shift 2;; esac; done; }\n";
  EXPECT_THAT(not_known(parse + "LR=1\nparse \"$@\"\nlaunch lr=$LR"),
              ElementsAre(HasSubstr("$LR, which line 3 sets under a condition")));
  EXPECT_THAT(not_known("function f { V=b; }\nV=a; f\nlaunch v=$V"),
              ElementsAre(HasSubstr("$V, which line 2 sets")));
  // What nobody calls, what is a function's own, and what is set again.
  EXPECT_THAT(not_known(parse + "LR=1\nlaunch lr=$LR"), IsEmpty());
  EXPECT_THAT(not_known("f () { local V=b; }\nV=a\nf\nlaunch v=$V"), IsEmpty());
  EXPECT_THAT(not_known(parse + "parse \"$@\"\nLR=1\nlaunch lr=$LR"), IsEmpty());
}

TEST(ShellScript, WhatACommandSaidIsAskedOfTheEnvironment) {
  EXPECT_THAT(
      ReadLaunch(
          "D=${DEVICE:-$(probe && echo n || echo g)}\nX=1\ncase \"$D\" in\n  g) X=2;;\nesac\n"
          "launch x=$X")
          .not_known,
      ElementsAre(AllOf(HasSubstr("line 4 sets under a condition on $(probe"),
                        HasSubstr("set DEVICE in the environment"))));
  const Launched launched = ReadLaunch(
      "D=${PWD:-$(probe)}\nX=1\nif [ \"$D\" = /work ] || [ $Y = 1 ]; then X=2; fi\nlaunch x=$X");
  EXPECT_THAT(launched.words, ElementsAre("x=2"));
  EXPECT_THAT(launched.not_known, IsEmpty());
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
      "& | case \"$A\" in a|(b) [[ a == b && -n $X ]] && ! x;; *) { y; } || z;; esac; if [ a ]; "
      "then b; "
      "elif c; else d; fi; function g { h; }; [[ a";
  for (size_t n = 0; n <= all.size(); ++n)
    (void)ReadShell({"run.sh", all.substr(0, n)}, Context({"x"}));
}

}  // namespace
}  // namespace keel::trainer::foreign
