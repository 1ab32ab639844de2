// Arguments as TRL's commands take them: which word of a command line launches which trainer, the
// values behind it, and what they were called in earlier versions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "trainer/foreign/foreign_import.h"
#include "trainer/foreign/given_values.h"
#include "trainer/foreign/shell_script.h"
#include "trainer/foreign/trl_keys.h"

namespace keel::trainer::foreign {

// The one command of a script that launches the trainer: `trl sft`, `trl/scripts/sft.py`, `-m
// trl.scripts.sft`. Of several `method` chooses, and of none a program that is named after it
// (run_sft.py); where it is nothing, it becomes what the command says. kConfig: there is no such
// command.
Result<Launch> FindTrlLaunch(const ImportRequest& request, std::optional<TrlMethod>* method);

// --name value, --name=value, --name value value, and --name alone for true; a name's beginning
// stands for it. A later value takes the place of an earlier one, also of a file's.
void AddArguments(const ShellCommand& command, const KeyTable& table, GivenValues* given,
                  std::vector<std::string>* unresolved);

// Gives what is called by an earlier version's name the one of today, and says so. One that is
// given by both names keeps both: the earlier is then no key.
void RenameEarlier(GivenValues* given, std::vector<std::string>* notes);

// As YAML 1.1 and argparse read it: "8" is a number, and so is 1_000. Nothing where it is none.
std::optional<double> AsNumber(const Json& value);

// What was given, or TRL's presets, as what it has to be.
class Arguments {
 public:
  // `given` must outlive it.
  explicit Arguments(const GivenValues& given) : given_(given) {}
  Json Value(const std::string& key) const;
  double Number(const std::string& key, double otherwise) const;
  // By HfArgumentParser's words.
  bool Flag(const std::string& key) const;
  int64_t Whole(const std::string& key, int64_t otherwise) const;
  std::string Text(const std::string& key) const;
  bool Has(const std::string& key) const { return given_.Has(key); }
  // What was asked for above and is not what it has to be: keys, and what was expected.
  const std::map<std::string, std::string>& unread() const { return unread_; }

 private:
  const GivenValues& given_;
  mutable std::map<std::string, std::string> unread_;
};

}  // namespace keel::trainer::foreign
