"""Tokens that both sides of a benchmark make for themselves, so that their losses can be compared."""

import numpy
import torch


def splitmix64(x):
    """The output function of SplitMix64 at counter values x (Steele, Lea and Flood, OOPSLA'14)."""
    z = x * numpy.uint64(0x9E3779B97F4A7C15) + numpy.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


def batch(step, batch_size, length, vocabulary):
    """Inputs and targets [batch_size, length] of a step, counted from 0.

    Sequence n = step * batch_size + row has length + 1 tokens; the p-th is
    splitmix64(n * (length + 1) + p) modulo the vocabulary. Inputs are the first `length` of them,
    targets the last.
    """
    rows = numpy.arange(step * batch_size, (step + 1) * batch_size, dtype=numpy.uint64)
    counters = rows[:, None] * numpy.uint64(length + 1) + numpy.arange(length + 1, dtype=numpy.uint64)
    tokens = (splitmix64(counters) % numpy.uint64(vocabulary)).astype(numpy.int64)
    tokens = torch.from_numpy(tokens)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
