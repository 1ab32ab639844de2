// write_fuzz_seeds DIR: the seeds of each target as files DIR/<target>/<number>, for libFuzzer.
#include <cstdio>

#include "tests/fuzz/targets.h"

int main(int argc, char** argv) {
  if (argc == 2) return keel::fuzz::WriteSeeds(argv[1]) ? 0 : 74;
  std::fprintf(stderr, "usage: write_fuzz_seeds DIR\n");
  return 64;
}
