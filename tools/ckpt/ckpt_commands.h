// The `keel ckpt` commands: ls, inspect, verify, diff, pin, unpin, prune, reshard, export-hf,
// import-hf, import-gguf, dequantize-hf.
//
// Each is a function of its options and of the streams it writes to, so that tests call it as the
// command line does. Exit codes: 0, 1 (a checkpoint does not verify, or two differ), and those of
// sysexits.h.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace keel::tools {

struct CkptLsOptions {
  std::string directory;
  bool json = false;
};
int CkptLs(const CkptLsOptions& options, std::ostream& out, std::ostream& err);

struct CkptInspectOptions {
  std::string step;  // a step's directory
  bool json = false;
  bool tensors = false;  // list them
};
int CkptInspect(const CkptInspectOptions& options, std::ostream& out, std::ostream& err);

struct CkptVerifyOptions {
  std::string path;  // a run's directory or a step's
  int threads = 0;   // 0: as many as there are cores
};
int CkptVerify(const CkptVerifyOptions& options, std::ostream& out, std::ostream& err);

struct CkptDiffOptions {
  std::string a, b;   // steps' directories
  std::string scope;  // "": all
  bool json = false;
  int threads = 0;  // 0: as many as there are cores
};
int CkptDiff(const CkptDiffOptions& options, std::ostream& out, std::ostream& err);

struct CkptReshardOptions {
  std::string source;  // a step's directory
  std::string run;     // the run directory that gets it
  int world = 0;       // files per scope, or 0 and:
  std::string like;    // a step's directory whose files are the pattern
  int threads = 0;     // 0: as many as there are cores
};
int CkptReshard(const CkptReshardOptions& options, std::ostream& out, std::ostream& err);

struct CkptPinOptions {
  std::vector<std::string> steps;  // steps' directories
};
int CkptPin(const CkptPinOptions& options, std::ostream& out, std::ostream& err);
int CkptUnpin(const CkptPinOptions& options, std::ostream& out, std::ostream& err);

struct CkptPruneOptions {
  std::string directory;
  int keep_latest = 1;
  int keep_best = 0;
  std::string metric_mode = "";  // the name of a trainer::BestMode; "": what the checkpoints say
  int64_t keep_every = 0;
  bool dry_run = false;
};
int CkptPrune(const CkptPruneOptions& options, std::ostream& out, std::ostream& err);

struct CkptExportOptions {
  std::string step;
  std::string output;
  std::string role = "actor";
  int64_t max_shard_mb = 5000;
};
int CkptExportHf(const CkptExportOptions& options, std::ostream& out, std::ostream& err);

struct CkptImportOptions {
  std::string source;
  std::string run;
  int64_t step = 0;
  std::string role = "actor";
};
int CkptImportHf(const CkptImportOptions& options, std::ostream& out, std::ostream& err);

struct CkptImportGgufOptions {
  std::string file;
  std::string output;
  std::string dtype;  // the name of a trainer::WeightDtype; "": as the file's types say
  bool tokenizer_only = false;
};
int CkptImportGguf(const CkptImportGgufOptions& options, std::ostream& out, std::ostream& err);

struct CkptDequantizeOptions {
  std::string source;
  std::string output;
  std::string dtype = "bfloat16";  // the name of a trainer::WeightDtype
};
int CkptDequantizeHf(const CkptDequantizeOptions& options, std::ostream& out, std::ostream& err);

struct CkptMergeOptions {
  std::string adapters;
  std::string output;
  std::string base;  // ""; where the adapters say
};
int CkptMergeAdapter(const CkptMergeOptions& options, std::ostream& out, std::ostream& err);

// Adds `ckpt` with its subcommands to the program's command line. When one of them runs, its exit
// code goes to `*exit_code`.
void AddCkptCommands(CLI::App& app, int* exit_code);

}  // namespace keel::tools
