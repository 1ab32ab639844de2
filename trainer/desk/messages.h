// What the desk and its workers say to each other. Torch-free.
//
// A worker is one rollout replica; its first rank speaks for all. Both ends are the same program
// (Hello::facts), so there is one version of these bytes, and no golden file: little-endian, texts
// and lists with their size before them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/status.h"
#include "trainer/data/prompt_data.h"
#include "trainer/desk/samples.h"

namespace keel::trainer::desk {

// What samples are generated for. Each has leases of its own.
enum class Stream : uint8_t { kTrain, kValidation };

// From workers.

struct Hello {
  std::string name;                          // for people: host, process, ranks
  std::vector<int> ranks;                    // of the job, in the replica's order
  int64_t capacity = 0;                      // samples at a time
  std::map<std::string, std::string> facts;  // must be those of the desk
};
// It lives. Since it was started:
struct Heartbeat {
  int64_t up_us = 0;    // for how long it has been there, in microseconds
  int64_t idle_us = 0;  // of it, in which there was nothing to generate
  int64_t tokens = 0;   // that it has chosen
  int64_t again = 0;    // that it has computed again, after a preemption or under new weights
};
// All of the weights of this version have arrived and are what generates from now on.
struct Serving {
  int64_t version = 0;
  uint64_t digest = 0;
};
// Tokens behind the `from` that the desk knows of.
struct Progress {
  Stream stream = Stream::kTrain;
  int64_t lease = 0;
  int64_t from = 0;
  Partial more;
};
// The sample has as many tokens as were asked for; all of them are reported.
struct Back {
  Stream stream = Stream::kTrain;
  int64_t lease = 0;
};
struct Done {
  Stream stream = Stream::kTrain;
  int64_t lease = 0;
  std::vector<VersionSpan> spans;
  std::string response;  // EncodeResponses of the one
  std::string text;      // EncodeTexts of it, where the assignment asked for it; else ""
};
// Why it ends.
struct Failed {
  StatusCode code = StatusCode::kInternal;
  std::string message;
};

// From a worker that is none of the job's ranks, before its hello: it wants to be so many.
struct Join {
  int64_t ranks = 0;
};
// From whoever wants to know how the run stands (keel status), and is no worker.
struct Ask {};

// From the desk.

struct Welcome {
  int64_t worker = 0;
};
// A place in the job: its ranks are numbered from `first` on, and `job` is JobAddress's text.
struct Joined {
  int64_t first = 0;
  std::string job;
};
// It is turned away, or given up.
struct Refused {
  StatusCode code = StatusCode::kUnavailable;
  std::string message;
};
// Make the group over which weights come: `trainers` and then the worker's ranks.
struct LinkUp {
  std::string group;
  std::vector<int> trainers;
};
// Weights of this version are being sent over the link.
struct Push {
  int64_t version = 0;
};
struct Assign {
  Stream stream = Stream::kTrain;
  int64_t lease = 0;
  SampleId id;
  bool text = false;  // somebody will read it
  rl::Prompt prompt;
  Partial so_far;
  int64_t until = INT64_MAX;  // tokens of the response, after which it is given back
};
// A response that takes too long is to end with the tokens that it has.
struct Conclude {
  Stream stream = Stream::kTrain;
  int64_t lease = 0;
};
// The trainers end.
struct Bye {
  bool over = false;  // so does the run; else it was interrupted, and may be gone on with
};
// How it stands, as JSON: {"version", "digest", "streams": {"train": {"frontier", "steps",
// "finished", "running", "waiting"}}, "workers": [{"name", "state", "version", "samples", "tokens",
// "idle", "silent_s"}], "lost", "reassigned_tokens"}. `idle` is a share of the worker's time.
struct Told {
  std::string state;
};

using Message = std::variant<Hello, Heartbeat, Serving, Progress, Back, Done, Failed, Join, Ask,
                             Welcome, Joined, Refused, LinkUp, Push, Assign, Conclude, Bye, Told>;

std::string Encode(const Message& message);
// kInvalidData for bytes that Encode did not make. What they claim is not believed: no more memory
// is taken than in proportion to the bytes.
Result<Message> Decode(std::string_view bytes);

}  // namespace keel::trainer::desk
