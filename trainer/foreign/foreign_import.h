// What imports of all trainers have in common: what they are given and give, and how a launch is
// found in a script.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "common/options/schema.h"
#include "common/status.h"
#include "trainer/foreign/given_values.h"
#include "trainer/foreign/shell_script.h"
#include "trainer/foreign/translation.h"

namespace keel::trainer::foreign {

struct ImportRequest {
  options::Source file;  // YAML, or a script that launches the trainer
  // Of a script $1 and on; of YAML what stands behind it on the trainer's command line.
  std::vector<std::string> arguments;
  Environment environment;
  int64_t world = 0;  // ranks; 0: not said
};

struct Imported {
  std::string yaml;
  std::string report;
  std::vector<std::string> unresolved;  // what has to be said before the file can be trusted
  int64_t world = 1;                    // ranks that the file was made for
};

// Whether the text is a script rather than YAML, by its name or its first line.
bool IsScript(const options::Source& file);
bool IsNamedAsYaml(const options::Source& file);

// The request's arguments as a command's words, which stand in no line.
ShellCommand CommandOf(const std::vector<std::string>& arguments);
// Where a word stands, for the beginning of a message.
std::string LineOf(const ShellWord& word);

// Whether a word of a command, and the word before it, launch the trainer.
using IsLaunch = std::function<bool(const std::string& word, const std::string& before)>;

struct Launch {
  ShellCommand command;                    // from the word after the trainer's name on
  std::set<std::string> from_environment;  // variables whose values came from there
  std::vector<std::string> unresolved;     // values that the command was to have and has not
};

// The one command of the script one of whose words `is_launch` knows. kConfig: there is none, or
// several.
Result<Launch> FindLaunch(const ImportRequest& request, const std::string& expected,
                          const IsLaunch& is_launch);

// What reads "~/" expands it; Keel opens paths as they are.
void ExpandHome(const Environment& environment, const options::Schema& schema,
                Translation* translation);

// Text and report of what was translated. kConfig: the other trainer has none of the keys.
Result<Imported> Finish(const ImportRequest& request, const std::string& command,
                        GivenValues& given, const std::set<std::string>& from_environment,
                        Translation& translation);

}  // namespace keel::trainer::foreign
